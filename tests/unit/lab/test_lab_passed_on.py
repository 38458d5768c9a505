import configparser
import os
import tomllib
from pathlib import Path

import pytest

from lab.apt_config import (
    DEFAULT_SOURCES,
    Source,
    fetch_settings,
    for_suite,
    is_debian,
    machine_sources,
    parse_deb822,
    parse_one_line,
    pass_on_apt,
    render_deb822,
)
from lab.passed_on import PassedOn, environment_files, environment_from, extra_cas, resolv_conf
from lab.pip_config import (
    config_files,
    directories_to_bind,
    effective_options,
    pass_on_pip,
    render_pip_conf,
    render_uv_toml,
)

DEB822 = """\
# A mirror inside the company
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: https://node.example/node_20.x
Suites: nodistro
Components: main

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main
"""


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_deb822_sources_are_read_and_only_debians_kept() -> None:
    sources = parse_deb822(DEB822)
    assert [source.uris for source in sources] == [
        ("http://mirror.example/debian",),
        ("https://node.example/node_20.x",),
    ]
    assert [is_debian(source) for source in sources] == [True, False]


def test_one_line_sources() -> None:
    text = (
        "# deb http://commented.example/debian bookworm main\n"
        "deb [arch=amd64 signed-by=/etc/apt/keyrings/m.gpg] http://m.example/debian bookworm main\n"
        "deb-src http://m.example/debian bookworm main\n"
    )
    (source,) = parse_one_line(text)
    assert source == Source(
        ("http://m.example/debian",), ("bookworm",), ("main",), "/etc/apt/keyrings/m.gpg"
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("deb http://deb.debian.org/debian bookworm main contrib", True),
        ("deb http://security.debian.org/debian-security bookworm-security main", True),
        ("deb [signed-by=/k/docker.asc] https://d.example/linux/debian bookworm stable", False),
        ("deb [signed-by=/k/other.gpg] https://apt.example/ bookworm main", False),
        ("deb http://pg.example/apt bookworm-pgdg main", False),
        ("deb http://archive.ubuntu.com/ubuntu noble main", False),
        ("deb file:/srv/debian bookworm main", False),
    ],
)
def test_whose_sources_are_debians(line: str, expected: bool) -> None:
    (source,) = parse_one_line(line)
    assert is_debian(source) is expected


def test_the_suite_is_replaced_and_a_machine_without_debian_gets_defaults() -> None:
    moved = for_suite(parse_deb822(DEB822), "trixie")
    assert [source.suites for source in moved] == [("trixie", "trixie-updates")]
    ubuntu = parse_one_line("deb http://archive.ubuntu.com/ubuntu noble main")
    assert [source.uris for source in for_suite(ubuntu, "trixie")] == [
        source.uris for source in DEFAULT_SOURCES
    ]
    assert for_suite(ubuntu, "trixie")[1].suites == ("trixie-security",)


def test_rendered_sources_read_back() -> None:
    key = "\n-----BEGIN PGP PUBLIC KEY BLOCK-----\n.\nabc\n-----END PGP PUBLIC KEY BLOCK-----"
    sources = [Source(("http://m.example/debian",), ("trixie",), ("main",), key.strip(), True)]
    assert parse_deb822(render_deb822(sources)) == sources


def test_apt_settings_say_how_to_fetch_and_nothing_else() -> None:
    dump = """\
Acquire "";
Acquire::http::Proxy "http://proxy.example:3128";
Acquire::https::CaInfo "/etc/company.pem";
Acquire::Check-Valid-Until "false";
Acquire::IndexTargets::deb::Packages::Optional "0";
APT::Update::Post-Invoke:: "rm -rf /var/cache/x";
DPkg::Post-Invoke:: "true";
"""
    assert fetch_settings(dump).splitlines() == [
        'Acquire::http::Proxy "http://proxy.example:3128";',
        'Acquire::https::CaInfo "/etc/company.pem";',
        'Acquire::Check-Valid-Until "false";',
    ]


def test_files_that_apt_names_go_along(tmp_path: Path) -> None:
    line = "deb [signed-by=/etc/apt/keyrings/m.gpg] http://m.example/debian bookworm main\n"
    write(tmp_path, "etc/apt/sources.list.d/a.list", line)
    write(tmp_path, "etc/apt/keyrings/m.gpg", "key")
    write(tmp_path, "etc/apt/auth.conf.d/m.conf", "machine m.example login u password p")
    write(tmp_path, "etc/company.pem", "ca")
    result = PassedOn()
    pass_on_apt(result, tmp_path, 'Acquire::https::CaInfo "/etc/company.pem";\n')
    assert {path: copy.mode for path, copy in result.files.items()} == {
        "/etc/apt/keyrings/m.gpg": 0o644,
        "/etc/apt/auth.conf.d/m.conf": 0o600,
        "/etc/company.pem": 0o644,
    }
    assert machine_sources(tmp_path)[0].uris == ("http://m.example/debian",)


@pytest.fixture
def pip_machine(tmp_path: Path) -> Path:
    write(tmp_path, "etc/xdg/pip/pip.conf", "[global]\nconstraint = /etc/xdg/c.txt\ntimeout = 5\n")
    write(tmp_path, "etc/xdg/c.txt", "a<2\n")
    write(
        tmp_path,
        "home/.config/pip/pip.conf",
        "[global]\nextra-index-url = file:///srv/pypi/simple\n    https://two.example/simple\n"
        "target = /home/me/lib\n[install]\nno_index = no\n",
    )
    (tmp_path / "srv/pypi/simple").mkdir(parents=True)
    (tmp_path / "srv/wheels").mkdir()
    return tmp_path


def options_of(root: Path, environ: dict[str, str]) -> dict[str, dict[str, str]]:
    return effective_options(config_files(root, root / "home", environ), environ)


def test_pip_options_merge_as_pips_do(pip_machine: Path) -> None:
    environ = {"PIP_FIND_LINKS": "/srv/wheels", "PIP_DEFAULT_TIMEOUT": "60", "PIP_USER": "1"}
    options = options_of(pip_machine, environ)
    assert options["global"]["timeout"] == "60"
    assert options["global"]["find-links"] == "/srv/wheels"
    assert options["global"]["constraint"] == "/etc/xdg/c.txt"
    assert options["install"] == {"no-index": "no"}
    assert "target" not in options["global"]
    assert "user" not in options["global"]


def test_no_config_file_when_pip_is_told_so(pip_machine: Path) -> None:
    assert options_of(pip_machine, {"PIP_CONFIG_FILE": os.devnull}) == {}


def test_local_indexes_are_bound_with_the_files_beside_them(pip_machine: Path) -> None:
    options = options_of(pip_machine, {"PIP_FIND_LINKS": "/srv/wheels file:///srv/wheels/sub"})
    assert directories_to_bind(options) == ["/srv/pypi", "/srv/wheels"]
    assert directories_to_bind({"global": {"find-links": "/ https://x.example"}}) == []


def test_rendered_pip_conf_is_what_pip_reads(pip_machine: Path) -> None:
    parser = configparser.RawConfigParser()
    parser.read_string(render_pip_conf(options_of(pip_machine, {})))
    assert parser["global"]["extra-index-url"].split() == [
        "file:///srv/pypi/simple",
        "https://two.example/simple",
    ]


def test_uv_gets_the_same_sources(pip_machine: Path) -> None:
    environ = {"PIP_INDEX_URL": 'https://one.example/"q"', "PIP_FIND_LINKS": "/srv/wheels"}
    options = options_of(pip_machine, environ)
    assert tomllib.loads(render_uv_toml(options)) == {
        "index-url": 'https://one.example/"q"',
        "extra-index-url": ["file:///srv/pypi/simple", "https://two.example/simple"],
        "index-strategy": "unsafe-best-match",
        "find-links": ["/srv/wheels"],
    }


def test_uv_learns_of_no_index_only_where_it_is_on() -> None:
    assert tomllib.loads(render_uv_toml({"global": {"no-index": "no"}})) == {}
    assert tomllib.loads(render_uv_toml({"global": {"no-index": "1"}})) == {"no-index": True}


def test_pip_is_passed_on_whole(pip_machine: Path) -> None:
    result = PassedOn()
    environ = {"PIP_FIND_LINKS": "/srv/gone", "UV_FIND_LINKS": "/srv/wheels", "UV_CACHE_DIR": "/c"}
    assert pass_on_pip(result, pip_machine, pip_machine / "home", environ) == {
        "UV_FIND_LINKS": "/srv/wheels"
    }
    assert set(result.files) == {"/etc/pip.conf", "/etc/uv/uv.toml", "/etc/xdg/c.txt"}
    assert result.binds == ["/srv/pypi"]
    assert result.warnings == ["pip is configured to read /srv/gone, which is no directory here"]


def test_a_machine_without_pip_configuration_passes_nothing_on(tmp_path: Path) -> None:
    result = PassedOn()
    assert pass_on_pip(result, tmp_path, tmp_path / "home", {}) == {}
    assert result == PassedOn()


def test_extra_cas_bring_the_variables_for_programs_with_their_own_list(tmp_path: Path) -> None:
    write(tmp_path, "usr/local/share/ca-certificates/company.crt", "pem")
    result = PassedOn()
    assert extra_cas(result, tmp_path)
    environment_from(result, tmp_path, {}, "10.0.0.0/8", has_extra_cas=True)
    assert result.environment["SSL_CERT_FILE"] == "/etc/ssl/certs/ca-certificates.crt"
    assert list(result.files) == ["/usr/local/share/ca-certificates/company.crt"]


def test_proxies_go_along_without_the_lab_network(tmp_path: Path) -> None:
    result = PassedOn()
    environ = {"HTTPS_PROXY": "http://p.example:3128", "no_proxy": "a.example", "HOME": "/root"}
    environment_from(result, tmp_path, environ, "10.213.77.0/24", has_extra_cas=False)
    assert result.environment == {
        "https_proxy": "http://p.example:3128",
        "no_proxy": "a.example,10.213.77.0/24",
    }
    assert result.warnings == []
    environment_from(result, tmp_path, {"http_proxy": "http://127.0.0.1:1"}, "n", False)
    assert len(result.warnings) == 1


def test_environment_reaches_logins_services_and_sudo() -> None:
    files = environment_files({"SSL_CERT_FILE": "/a b", "X": "50%"})
    assert files["/etc/environment"].data == b'SSL_CERT_FILE="/a b"\nX="50%"\n'
    manager = files["/etc/systemd/system.conf.d/10-fleet-lab.conf"].data.decode()
    assert manager == '[Manager]\nDefaultEnvironment="SSL_CERT_FILE=/a b" "X=50%%"\n'
    assert files["/etc/sudoers.d/fleet-lab-environment"].mode == 0o440
    assert environment_files({}) == {}


def test_resolv_conf_prefers_servers_that_hosts_can_reach(tmp_path: Path) -> None:
    write(tmp_path, "etc/resolv.conf", "nameserver 127.0.0.53\n")
    _text, warnings = resolv_conf(tmp_path)
    assert len(warnings) == 1
    write(tmp_path, "run/systemd/resolve/resolv.conf", "nameserver 192.0.2.1\n")
    assert resolv_conf(tmp_path) == ("nameserver 192.0.2.1\n", [])


def test_the_digest_changes_with_content_mode_and_environment(tmp_path: Path) -> None:
    write(tmp_path, "usr/local/share/ca-certificates/a.crt", "one")
    first, second, third = PassedOn(), PassedOn(), PassedOn(environment={"A": "1"})
    extra_cas(first, tmp_path)
    extra_cas(third, tmp_path)
    write(tmp_path, "usr/local/share/ca-certificates/a.crt", "two")
    extra_cas(second, tmp_path)
    assert len({first.digest(), second.digest(), third.digest()}) == 3
