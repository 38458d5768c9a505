from tests.fakes.pyinfra_host import world

__all__ = ["world"]
