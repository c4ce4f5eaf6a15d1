# The last layer of a node's image: code that changes often, on top of what takes minutes to compile.
ARG RUNTIME
FROM ${RUNTIME}

USER root
COPY agent/ /opt/hvdctl/agent/
COPY hvd-agent /usr/local/bin/hvd-agent
RUN chmod -R go-w /opt/hvdctl/agent && python3 -m compileall -q /opt/hvdctl/agent
USER hvd
