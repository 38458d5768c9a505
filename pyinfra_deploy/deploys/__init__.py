"""What a role needs, step by step; see steps.py. Empty, so that a plan loads no pyinfra."""
