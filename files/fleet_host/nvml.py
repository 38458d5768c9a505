"""The few calls of NVIDIA's management library that fans and proofs need, by ctypes.

Names, arguments and return codes are those of nvml.h (nvmlDeviceGetNumFans,
nvmlDeviceSetFanSpeed_v2, nvmlDeviceSetDefaultFanSpeed_v2, nvmlDeviceGetMinMaxFanSpeed,
nvmlDeviceGetUUID, nvmlDeviceGetMemoryInfo).
"""

from __future__ import annotations

import ctypes
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import HostError

if TYPE_CHECKING:
    from collections.abc import Iterator

LIBRARY = "libnvidia-ml.so.1"
SUCCESS, NOT_SUPPORTED = 0, 3
TEMPERATURE_GPU = 0
UUID_LENGTH = 96  # NVML_DEVICE_UUID_V2_BUFFER_SIZE


class _Memory(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


@dataclass(frozen=True)
class Card:
    """One GPU. fans: how many it has that can be set; 0 for a passive card. lowest, highest: what
    it takes as a speed, in percent."""

    index: int
    handle: ctypes.c_void_p
    fans: int
    lowest: int = 0
    highest: int = 100


class Library:
    """An initialised NVML. Every call that fails raises HostError in NVML's own words."""

    def __init__(self, library: Any) -> None:
        self._library = library
        library.nvmlErrorString.restype = ctypes.c_char_p

    def _call(self, name: str, *arguments: Any) -> int:
        try:
            function = getattr(self._library, name)
        except AttributeError as error:
            raise HostError(
                f"this driver cannot do {name}",
                f"its {LIBRARY} has no such call, so it is too old to set fans.",
                "Write gpu_cooling: report, or install a newer driver.",
            ) from error
        return int(function(*arguments))

    def _checked(self, what: str, name: str, *arguments: Any) -> None:
        code = self._call(name, *arguments)
        if code != SUCCESS:
            raise self._failure(what, name, code)

    def _failure(self, what: str, name: str, code: int) -> HostError:
        words = self._library.nvmlErrorString(code) or b"unknown error"
        return HostError(
            what,
            f"{name}: {words.decode(errors='replace')} ({code}).",
            "Look at nvidia-smi and at the kernel's lines: journalctl -k | grep NVRM.",
        )

    def cards(self) -> list[Card]:
        return [self._card(index) for index in range(self._count())]

    def free_bytes(self) -> dict[str, int]:
        """UUID, as nvidia-smi writes it, -> bytes of memory that nobody has."""
        found = {}
        for index in range(self._count()):
            handle, memory = self._handle(index), _Memory()
            text = ctypes.create_string_buffer(UUID_LENGTH)
            self._checked(
                f"the UUID of GPU {index} cannot be read",
                "nvmlDeviceGetUUID",
                handle,
                text,
                ctypes.c_uint(UUID_LENGTH),
            )
            self._checked(
                f"the memory of GPU {index} cannot be read",
                "nvmlDeviceGetMemoryInfo",
                handle,
                ctypes.byref(memory),
            )
            found[text.value.decode(errors="replace")] = int(memory.free)
        return found

    def _count(self) -> int:
        count = ctypes.c_uint()
        self._checked("the GPUs cannot be counted", "nvmlDeviceGetCount_v2", ctypes.byref(count))
        return count.value

    def _handle(self, index: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self._checked(
            f"GPU {index} cannot be reached",
            "nvmlDeviceGetHandleByIndex_v2",
            ctypes.c_uint(index),
            ctypes.byref(handle),
        )
        return handle

    def _card(self, index: int) -> Card:
        handle, fans = self._handle(index), ctypes.c_uint()
        code = self._call("nvmlDeviceGetNumFans", handle, ctypes.byref(fans))
        if code not in (SUCCESS, NOT_SUPPORTED):
            raise self._failure(
                f"the fans of GPU {index} cannot be counted", "nvmlDeviceGetNumFans", code
            )
        if code == NOT_SUPPORTED or not fans.value:
            return Card(index, handle, 0)
        lowest, highest = ctypes.c_uint(), ctypes.c_uint()
        limits = (handle, ctypes.byref(lowest), ctypes.byref(highest))
        # Not every driver and card tells its limits; NVML itself refuses what is out of them.
        if hasattr(self._library, "nvmlDeviceGetMinMaxFanSpeed") and (
            self._call("nvmlDeviceGetMinMaxFanSpeed", *limits) == SUCCESS
        ):
            return Card(index, handle, fans.value, lowest.value, highest.value)
        return Card(index, handle, fans.value)

    def temperature_c(self, card: Card) -> int:
        value = ctypes.c_uint()
        self._checked(
            f"the temperature of GPU {card.index} cannot be read",
            "nvmlDeviceGetTemperature",
            card.handle,
            ctypes.c_int(TEMPERATURE_GPU),
            ctypes.byref(value),
        )
        return value.value

    def set_speed(self, card: Card, fan: int, percent: int) -> None:
        self._checked(
            f"fan {fan} of GPU {card.index} cannot be set to {percent}%",
            "nvmlDeviceSetFanSpeed_v2",
            card.handle,
            ctypes.c_uint(fan),
            ctypes.c_uint(percent),
        )

    def give_back(self, card: Card, fan: int) -> None:
        """Back to the driver's own, automatic control."""
        self._checked(
            f"fan {fan} of GPU {card.index} cannot be given back to the driver",
            "nvmlDeviceSetDefaultFanSpeed_v2",
            card.handle,
            ctypes.c_uint(fan),
        )

    def shut_down(self) -> None:
        self._library.nvmlShutdown()

    def initialise(self) -> None:
        self._checked("NVML does not start", "nvmlInit_v2")


@contextmanager
def opened() -> Iterator[Library]:
    """NVML, initialised and shut down again. FLEET_NVML_LIBRARY names another library in tests."""
    name = os.environ.get("FLEET_NVML_LIBRARY", LIBRARY)
    try:
        library = Library(ctypes.CDLL(name))
    except (OSError, AttributeError) as error:
        raise HostError(
            f"{name} cannot be loaded",
            f"{error}.",
            "Install the NVIDIA driver's libraries, or write gpu_cooling: report.",
        ) from error
    library.initialise()
    try:
        yield library
    finally:
        library.shut_down()
