"""Real systemd hosts on one machine, for trying and testing the deploy.

Import-light on purpose: `lab.standins` is copied into every lab host, where only Debian's
python3-minimal is installed.
"""
