from tests.unit.host.pull_world import world

__all__ = ["world"]
