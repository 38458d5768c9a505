from tests.fakes.lock_world import world

__all__ = ["world"]
