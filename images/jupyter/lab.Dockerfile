# A framework's runtime with JupyterLab beside it, so that no package of a framework is moved for it; kernels run in the
# framework's venv and find IPython behind the framework's own packages. images.py passes every argument.
ARG RUNTIME
ARG FILES
FROM ${FILES} AS files

FROM ${RUNTIME}
COPY --from=files /opt/jupyter /opt/jupyter
USER root
# Last on the kernels' path: where both have a package, it is the framework's.
RUN site=$(/opt/jupyter/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
 && echo "$site" > "$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/jupyter.pth" \
 && cd / && /opt/venv/bin/python -c 'import IPython, ipykernel, matplotlib, pydantic'
USER hvd
