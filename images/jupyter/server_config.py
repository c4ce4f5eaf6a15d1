"""JupyterLab on the head of a cluster: on a UNIX socket of its user alone, with a token that can be changed at any time."""

import hashlib
import re
from pathlib import Path

from jupyter_server.auth.identity import PasswordIdentityProvider
from jupyter_server.serverapp import ServerApp
from traitlets import default

HOME = Path.home() / ".hvdctl"
TOKEN = HOME / "jupyter.token"


def read_token():
    """The token; an error where the file is not whole. An empty one would mean that nobody is asked for it."""
    text = TOKEN.read_text().strip()
    if not re.fullmatch("[0-9a-f]{48}", text):
        raise ValueError(f"{TOKEN} holds no token")
    return text


def _secret(token):
    """What login cookies are signed with: with another token, those given out before are worth nothing."""
    return hashlib.sha256(b"hvdctl cookies\0" + token.encode()).digest()


class TokenOfFile(PasswordIdentityProvider):
    """The token is what stands in its file now, so that a new one counts at once and no kernel is lost for it."""

    auth_enabled = True

    @default("token")
    def _token_of_file(self):
        return read_token()

    @default("allow_password_change")
    def _no_password(self):
        return False

    def get_user(self, handler):
        return super().get_user(handler) if self._look(handler) else None

    def process_login_form(self, handler):
        return super().process_login_form(handler) if self._look(handler) else None

    def _look(self, handler):
        """Take the token as it is now; False where there is none, and so nobody gets in."""
        try:
            token = read_token()
        except (OSError, ValueError):
            return False
        if token != self.token:
            self.token = token
            handler.settings["token"] = token
            handler.settings["cookie_secret"] = _secret(token)
        return True


# A page that anybody may read, with the token in it, for a browser that is not here.
ServerApp.write_browser_open_files = lambda self: None
# The token is in its own file alone.
ServerApp.write_server_info_file = lambda self: None

c = get_config()  # noqa: F821 - Jupyter's

c.ServerApp.identity_provider_class = TokenOfFile
c.ServerApp.cookie_secret = _secret(read_token())
c.ServerApp.sock = str(HOME / "jupyter.sock")
c.ServerApp.sock_mode = "0600"
c.ServerApp.root_dir = "/shared"
c.ServerApp.default_url = "/lab/tree/notebooks"
c.ServerApp.open_browser = False
c.ServerApp.terminado_settings = {"shell_command": ["/bin/bash", "-l"]}
c.Application.log_level = "WARN"

# Ranks that say much are shortened by hvd_cluster; here only what would stall a browser is cut.
c.ZMQChannelsWebsocketConnection.iopub_data_rate_limit = 100_000_000
c.ZMQChannelsWebsocketConnection.iopub_msg_rate_limit = 10_000
# A share has no bin to put files into.
c.FileContentsManager.delete_to_trash = False

# Nothing is asked of the internet, and nothing can be installed into the image.
c.LabApp.news_url = None
c.LabApp.check_for_updates_class = "jupyterlab.NeverCheckForUpdate"
c.LabApp.extension_manager = "readonly"

# Started by the first who looks at it.
c.ServerProxy.servers = {
    "monitor": {
        "command": ["/opt/venv/bin/python", "-m", "hvd_cluster.monitor", "--socket", "{unix_socket}"],
        "unix_socket": True,
        "timeout": 30,
        "new_browser_tab": False,
        "launcher_entry": {
            "title": "Cluster monitor",
            "icon_path": "/opt/hvdctl/monitor.svg",
        },
    }
}
