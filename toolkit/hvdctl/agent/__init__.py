"""What runs on the nodes: jobs and their supervision, configuration files, checks.

Standard library only, and nothing from the rest of hvdctl: it is baked into the node image and started as
`hvd-agent VERB ...`, which is `python3 /opt/hvdctl/agent VERB ...`.
"""
