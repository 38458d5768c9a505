from tests.fakes.wheel_index import index

__all__ = ["index"]
