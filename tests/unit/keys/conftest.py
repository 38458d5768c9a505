from tests.fakes.key_fleet import make_fleet, no_vault_password

__all__ = ["make_fleet", "no_vault_password"]
