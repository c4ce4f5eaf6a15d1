"""A build backend that builds nothing: pip asks it for the name and version of a source, which are in PKG-INFO.

wheels.py puts it in the place of setuptools while it downloads Horovod's source, so that its setup.py does not run.
"""

import email
import os
import shutil
import sys


def get_requires_for_build_wheel(config_settings=None):
    return []


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    with open("PKG-INFO", encoding="utf-8") as file:
        known = email.message_from_file(file)
    folder = f"{known['Name']}-{known['Version']}.dist-info"
    os.mkdir(os.path.join(metadata_directory, folder))
    shutil.copyfile("PKG-INFO", os.path.join(metadata_directory, folder, "METADATA"))
    return folder


def build_wheel(*_, **__):
    raise NotImplementedError("this only reads metadata")


# The name by which pip asks for it if a source names no backend.
__legacy__ = sys.modules[__name__]
