# The last layer of a node's image: code that changes often, on top of what takes minutes to make.
ARG RUNTIME
FROM ${RUNTIME}

USER root
COPY root/ /
# What a user installs into ~/python, a folder of the share, is there for kernels and for ranks on every node.
RUN chmod -R go-w /opt/hvdctl && chmod 0755 /usr/local/bin/hvd-* \
 && python3 -m compileall -q /opt/hvdctl/agent /opt/hvdctl/lib \
 && printf '%s\n' /opt/hvdctl/lib /home/hvd/python > "$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/hvdctl.pth"
USER hvd
