"""Production, for pyinfra: hosts of prod/hosts.yml with group_vars/, all checked before the first
connection. Nothing is to be edited here."""

from pyinfra_deploy.settings import pyinfra_inventory

globals().update(pyinfra_inventory(__file__))
