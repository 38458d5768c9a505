"""Playbooks through ansible-runner, in a process of their own.

ansible-runner hangs in a process that gevent has patched, as pyinfra's is: nothing else imports
this package, and rollout/playbooks.py runs `python -m pyinfra_deploy.playbooks`.
"""
