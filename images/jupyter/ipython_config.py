"""Every kernel and IPython shell on a node knows %%hvd."""

c = get_config()  # noqa: F821 - IPython's
c.InteractiveShellApp.extensions = ["hvd_cluster"]
