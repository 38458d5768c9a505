from tests.fakes.lab_hub import hub, hub_directory, published

__all__ = ["hub", "hub_directory", "published"]
