# A node with a framework: the base, the compiled venv, and a description of what was really built.
ARG COMPILED
ARG BASE
FROM ${COMPILED} AS compiled

FROM ${BASE}

# Read by the NVIDIA container runtime where there is one, by nobody else.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility

COPY --from=compiled /opt/venv /opt/venv
COPY describe.py /opt/hvdctl/describe.py
USER root
RUN /opt/venv/bin/python /opt/hvdctl/describe.py > /etc/hvdctl/build.json && cat /etc/hvdctl/build.json
USER hvd
