"""What the rows of the tables are. Every model is strict: an unknown key, a wrong kind, a version
that is none, spans that overlap or a missing source is an error of the table."""

from __future__ import annotations

import itertools
import re
from typing import Annotated, Any, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


class Row(BaseModel):
    # Rows are validated inside their tables: a validator of their own would be built for nothing.
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True, defer_build=True
    )


def _version(value: Any) -> Version:
    if not isinstance(value, str):
        raise ValueError("a version stands in quotes (0.10 without them is the number 0.1)")
    try:
        return Version(value)
    except InvalidVersion as error:
        raise ValueError(f"{value!r} is not a version") from error


def _specifiers(value: Any) -> SpecifierSet:
    try:
        return SpecifierSet(value)
    except (InvalidSpecifier, TypeError, AttributeError) as error:
        raise ValueError(f"{value!r} is not a range of versions such as >=3.9,<3.13") from error


def _pair(value: Any) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)\.(\d+)", value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not two numbers in quotes, such as '8.9'")
    return int(match[1]), int(match[2])


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


VersionOf = Annotated[Version, BeforeValidator(_version)]
Pair = Annotated[tuple[int, int], BeforeValidator(_pair)]
# Kept as text: as a version, 535.54.03 would be printed 535.54.3.
DriverText = Annotated[str, Field(pattern=r"^\d+\.\d+(\.\d+)?$")]
Text = Annotated[str, Field(min_length=2, pattern=r"^\S(.*\S)?$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]
Severity = Literal["refuse", "warn", "note"]


def _names(value: Any) -> Any:
    # One text, parted by commas: parsing hundreds of items takes longer than all else here.
    return tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else value


def _ascending(what: str, versions: list[Any]) -> None:
    for before, after in itertools.pairwise(versions):
        if not before < after:
            raise ValueError(f"{what} have to ascend: {before} stands before {after}")


def _unique(what: str, names: list[Any]) -> None:
    twice = sorted({str(name) for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{what} twice: {', '.join(twice)}")


class Span(Row):
    """Versions in which something is there: sampled, so exact only at the samples.

    absent_in < first <= last < gone; None: no sample on that side.
    """

    absent_in: Annotated[Version | None, BeforeValidator(lambda v: v and _version(v))] = None
    first: Annotated[Version | None, BeforeValidator(lambda v: v and _version(v))] = None
    last: Annotated[Version | None, BeforeValidator(lambda v: v and _version(v))] = None
    gone: Annotated[Version | None, BeforeValidator(lambda v: v and _version(v))] = None

    @model_validator(mode="after")
    def _ordered(self) -> Span:
        if (self.last is None) != (self.gone is None):
            raise ValueError("last and gone go together")
        if self.first and self.last and self.first > self.last:
            raise ValueError(f"first {self.first} is above last {self.last}")
        bounds = [v for v in (self.absent_in, self.first) if v is not None]
        _ascending("absent_in and first", bounds)
        _ascending("last and gone", [v for v in (self.last, self.gone) if v is not None])
        return self

    def place(self, version: Version) -> Literal["before", "unknown", "there", "gone"]:
        """unknown: between two samples of which one has it and the other has not."""
        if self.absent_in is not None and version <= self.absent_in:
            return "before"
        if self.gone is not None and version >= self.gone:
            return "gone"
        if self.absent_in is not None and self.first is not None and version < self.first:
            return "unknown"
        if self.last is not None and version > self.last:
            return "unknown"
        return "there"


class VllmVersion(Row):
    vllm: VersionOf
    python: Annotated[SpecifierSet, BeforeValidator(_specifiers)]
    torch: VersionOf
    cuda: Pair
    kernels_cuda: Pair | None = None
    doubt: Text | None = None
    source: Text


class Fp8BlockCut(Row):
    refused_through: VersionOf
    works_from: VersionOf
    doubt: Text
    source: Text


class VllmVersions(Row):
    versions: Annotated[tuple[VllmVersion, ...], BeforeValidator(_tuple), Field(min_length=1)]
    fp8_block_cut: Fp8BlockCut

    @model_validator(mode="after")
    def _sorted(self) -> VllmVersions:
        _ascending("versions", [row.vllm for row in self.versions])
        return self


class CudaMajor(Row):
    cuda: int
    driver: DriverText
    forward_driver: DriverText
    oldest_capability: Pair
    source: Text


class CudaRelease(Row):
    cuda: Pair
    driver: DriverText


class CapabilityCuda(Row):
    capability: Pair
    cuda: Pair


class ForwardCompatibility(Row):
    supported_on: Text
    library_path: Text
    source: Text


class CudaDrivers(Row):
    majors: Annotated[tuple[CudaMajor, ...], BeforeValidator(_tuple)]
    releases: Annotated[tuple[CudaRelease, ...], BeforeValidator(_tuple)]
    releases_source: Text
    capabilities: Annotated[tuple[CapabilityCuda, ...], BeforeValidator(_tuple)]
    capabilities_source: Text
    forward_compatibility: ForwardCompatibility

    @model_validator(mode="after")
    def _sorted(self) -> CudaDrivers:
        _ascending("majors", [row.cuda for row in self.majors])
        _ascending("releases", [row.cuda for row in self.releases])
        _ascending("capabilities", [row.capability for row in self.capabilities])
        majors = {row.cuda for row in self.majors}
        for row in self.releases:
            if row.cuda[0] not in majors:
                raise ValueError(f"release {row.cuda} has no major version among majors")
        return self


class QuantisedSpan(Span):
    method: Name
    source: Text


class ArchitectureSpan(Span):
    names: Annotated[tuple[Name, ...], BeforeValidator(_names), Field(min_length=1)]
    quantised: Annotated[tuple[QuantisedSpan, ...], BeforeValidator(_tuple)] = ()
    source: Text


class Architectures(Row):
    model_types: dict[str, Name]
    architectures: Annotated[tuple[ArchitectureSpan, ...], BeforeValidator(_tuple)]

    @model_validator(mode="after")
    def _known(self) -> Architectures:
        names = [name for row in self.architectures for name in row.names]
        _unique("architectures", names)
        unknown = sorted(set(self.model_types.values()) - set(names))
        if unknown:
            raise ValueError(f"model_types name no architecture here: {', '.join(unknown)}")
        return self


class CapabilityRule(Row):
    capability: Pair
    source: Text


class MinimumCapability(Row):
    vllm: VersionOf
    capability: Pair


class Quantisation(Span):
    method: Name
    native: Pair | None
    minimum: Annotated[tuple[MinimumCapability, ...], BeforeValidator(_tuple), Field(min_length=1)]
    source: Text

    @model_validator(mode="after")
    def _sorted(self) -> Quantisation:
        _ascending("minimum", [row.vllm for row in self.minimum])
        return self


class Quantisations(Row):
    bfloat16: CapabilityRule
    engine: CapabilityRule
    methods: Annotated[tuple[Quantisation, ...], BeforeValidator(_tuple)]

    @model_validator(mode="after")
    def _once(self) -> Quantisations:
        _unique("methods", [row.method for row in self.methods])
        return self


class GpuModel(Row):
    name: Text
    capability: Pair
    memory_mib: int | None = None
    memory_mib_ecc_off: int | None = None
    passive: bool | None = None
    pcie_generation: Literal[1, 2, 3, 4, 5, 6] | None = None
    pcie_width: Literal[1, 2, 4, 8, 16] | None = None
    forward_compatible: bool | None = None
    lies: Text | None = None
    rebuilt: Text | None = None
    source: Text


class GpuModels(Row):
    models: Annotated[tuple[GpuModel, ...], BeforeValidator(_tuple)]

    @model_validator(mode="after")
    def _once(self) -> GpuModels:
        _unique("models", [row.name for row in self.models])
        return self


class Argument(Span):
    name: Name
    deprecated: Annotated[Version | None, BeforeValidator(lambda v: v and _version(v))] = None
    never: bool = False
    instead: Name | None = None
    advice: Text | None = None

    @model_validator(mode="after")
    def _complete(self) -> Argument:
        if self.never == (self.first is not None):
            raise ValueError("an argument has a first version, or never: true")
        if (self.never or self.gone is not None) and self.advice is None:
            raise ValueError("an argument that is gone needs advice: what to write instead")
        return self


class Combination(Row):
    when: dict[Name, bool | str | None] = Field(min_length=1)
    device: Literal["cuda", "cpu"] | None = None
    from_: Annotated[Version | None, BeforeValidator(lambda v: v and _version(v))] = Field(
        None, alias="from"
    )
    before: Annotated[Version | None, BeforeValidator(lambda v: v and _version(v))] = None
    severity: Severity
    message: Text
    fix: Text
    source: Text

    @model_validator(mode="after")
    def _conditions(self) -> Combination:
        for name, value in self.when.items():
            if isinstance(value, str) and not re.fullmatch(r">\d+(\.\d+)?|[A-Za-z0-9_.-]+", value):
                raise ValueError(f"when.{name}: {value!r} is neither a value nor >NUMBER")
        return self


class Replaced(Row):
    """What to write for an argument that is gone; from when on is in vllm_serve.tsv."""

    name: Name
    instead: Name | None = None
    advice: Text
    source: Text


class EngineArguments(Row):
    source: Text
    arguments: Annotated[tuple[Argument, ...], BeforeValidator(_tuple)]
    replaced: Annotated[tuple[Replaced, ...], BeforeValidator(_tuple)] = ()
    combinations: Annotated[tuple[Combination, ...], BeforeValidator(_tuple)]

    @model_validator(mode="after")
    def _known(self) -> EngineArguments:
        names = [row.name for row in self.arguments]
        _unique("arguments and replaced", names + [row.name for row in self.replaced])
        for row in self.combinations:
            unknown = sorted(set(row.when) - set(names))
            if unknown:
                raise ValueError(f"combinations name unknown arguments: {', '.join(unknown)}")
        return self


class XidCode(Row):
    code: int
    about: Literal["bus", "memory", "nvlink", "firmware", "power", "application", "driver"]
    severity: Severity
    meaning: Text
    action: Text


class XidCodes(Row):
    source: Text
    codes: Annotated[tuple[XidCode, ...], BeforeValidator(_tuple)]

    @model_validator(mode="after")
    def _sorted(self) -> XidCodes:
        _ascending("codes", [row.code for row in self.codes])
        return self


RawCommand = Annotated[str, Field(pattern=r"^raw(?: 0x[0-9a-f]{2})+(?: \{(?:percent|mode)\})?$")]
RawCommands = Annotated[tuple[RawCommand, ...], BeforeValidator(_tuple), Field(min_length=1)]


class BmcBoard(Row):
    """How the chassis' fans of some boards are set through the BMC, and given back."""

    name: Text
    vendor: Annotated[tuple[Text, ...], BeforeValidator(_tuple), Field(min_length=1)]
    match: Literal["board", "system"]
    model: Annotated[str, Field(min_length=4)]
    read_mode: RawCommand | None = None
    full: RawCommands
    duty: RawCommands
    undo: RawCommands
    source: Text

    @model_validator(mode="after")
    def _undone(self) -> BmcBoard:
        re.compile(self.model)
        if any("{mode}" in command for command in self.undo) != (self.read_mode is not None):
            raise ValueError("undo needs {mode} where there is read_mode, and only there")
        if any("{" in command for command in self.full):
            raise ValueError("full takes no value")
        return self


class BmcCooling(Row):
    boards: Annotated[tuple[BmcBoard, ...], BeforeValidator(_tuple)]

    @model_validator(mode="after")
    def _named(self) -> BmcCooling:
        _unique("boards", [row.name for row in self.boards])
        return self


class FindingRow(Row):
    """One finding id. severity: those it is given, the usual one first. acceptable: whether
    `accept_findings` may turn its refusal into a warning."""

    id: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*(\.[a-z0-9][a-z0-9-]*)+$")]
    title: Text
    severity: Annotated[tuple[Severity, ...], BeforeValidator(_tuple), Field(min_length=1)]
    acceptable: bool = True
    meaning: Annotated[str, Field(min_length=20)]
    fix: Annotated[str, Field(min_length=10)]
    source: Text


class Findings(Row):
    findings: Annotated[tuple[FindingRow, ...], BeforeValidator(_tuple)]

    @model_validator(mode="after")
    def _sorted(self) -> Findings:
        _unique("ids", [row.id for row in self.findings])
        return self
