"""What stands in, on a lab host, for hardware and kernel settings that it does not have.

Copied into every host, where only python3-minimal is sure to be there: no json, no ctypes.
"""
