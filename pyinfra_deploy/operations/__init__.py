"""How one thing on a host changes: pyinfra operations around the host program."""
