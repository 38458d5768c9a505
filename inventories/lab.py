"""The lab, for pyinfra: lab/hosts.yml is written by `make lab`."""

from pyinfra_deploy.settings import pyinfra_inventory

globals().update(pyinfra_inventory(__file__))
