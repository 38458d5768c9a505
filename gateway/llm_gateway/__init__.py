"""The service behind Nginx that knows the API keys. Imports nothing from pyinfra_deploy."""
