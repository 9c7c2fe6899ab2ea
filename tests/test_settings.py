"""Options and ini keys: what they take, what they refuse, and which of two wins."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from pytest_dataloader.settings import OPTIONS, SettingError, Settings, resolve


def settings_of(given: dict[str, Any] | None = None, ini: dict[str, str] | None = None) -> Settings:
    return resolve((given or {}).get, (ini or {}).get)


def error_of(given: dict[str, Any] | None = None, ini: dict[str, str] | None = None) -> str:
    with pytest.raises(SettingError) as caught:
        settings_of(given, ini)
    return str(caught.value)


def test_nothing_said_gives_the_defaults_and_says_so() -> None:
    settings = settings_of()

    assert settings == Settings(sources=dict.fromkeys(settings.sources, "default"))
    assert set(settings.sources) == {one.name for one in OPTIONS if one.has_ini}
    assert not settings.was_asked


def test_the_options_of_the_table_are_those_of_the_settings() -> None:
    defaults = Settings()

    for one in OPTIONS:
        if one.has_ini:
            assert getattr(defaults, one.name) == one.default


def test_flags_and_keys_follow_from_the_name() -> None:
    assert [(one.flag, one.key) for one in OPTIONS] == [
        ("--dl-start-methods", "dl_start_methods"),
        ("--dl-num-workers", "dl_num_workers"),
        ("--dl-seeds", "dl_seeds"),
        ("--dl-timeout", "dl_timeout"),
        ("--dl-check", "dl_check"),
        ("--dl-true-starts", "dl_true_starts"),
        ("--dl-select", "dl_select"),
        ("--dl-ignore", "dl_ignore"),
        ("--dl-report", "dl_report"),
        ("--dl-tune", "dl_tune"),
        ("--dl-compare", "dl_compare"),
        ("--dl-explain", "dl_explain"),
    ]


def test_the_command_line_wins_over_the_ini_file() -> None:
    settings = settings_of({"dl_num_workers": "3"}, {"dl_num_workers": "0,1", "dl_seeds": "7"})

    assert settings.num_workers == (3,)
    assert settings.seeds == (7,)
    assert settings.sources["num_workers"] == "--dl-num-workers"
    assert settings.sources["seeds"] == "ini dl_seeds"
    assert settings.sources["timeout"] == "default"
    assert settings.was_asked


def test_an_ini_key_alone_does_not_count_as_asked() -> None:
    assert not settings_of(ini={"dl_seeds": "7"}).was_asked


def test_every_option_is_read() -> None:
    settings = settings_of(
        {
            "dl_start_methods": "spawn, fork,spawn",
            "dl_num_workers": "0, 4",
            "dl_seeds": "5",
            "dl_timeout": "2.5",
            "dl_check": ["a:b", "c.py"],
            "dl_true_starts": True,
            "dl_select": "hang,picklability",
            "dl_ignore": "slow",
        }
    )

    assert settings.start_methods == ("spawn", "fork")
    assert settings.num_workers == (0, 4)
    assert settings.seeds == (5,)
    assert settings.timeout == 2.5
    assert settings.check == ("a:b", "c.py")
    assert settings.true_starts is True
    assert settings.select is not None
    assert {"hang", "unpicklable", "heavy-pickle"} <= settings.select
    assert settings.ignore == {"slow"}


def test_several_targets_stand_on_lines_of_the_ini_key() -> None:
    assert settings_of(ini={"dl_check": "\n  a:b\n  c.py\n\n"}).check == ("a:b", "c.py")


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        (
            "dl_start_methods",
            "fork,thread",
            (
                "--dl-start-methods: 'thread' is not a start method; "
                "valid: fork, spawn, forkserver, all, default"
            ),
        ),
        (
            "dl_start_methods",
            " , ",
            (
                "--dl-start-methods: no start method given; "
                "valid: fork, spawn, forkserver, all, default"
            ),
        ),
        (
            "dl_num_workers",
            "0,-1",
            (
                "--dl-num-workers: '-1' is not a worker count; "
                "valid: whole numbers from 0, such as 0,2"
            ),
        ),
        (
            "dl_num_workers",
            "²",
            "--dl-num-workers: '²' is not a worker count; valid: whole numbers from 0, such as 0,2",
        ),
        (
            "dl_num_workers",
            "",
            "--dl-num-workers: no value given; valid: whole numbers from 0, such as 0,2",
        ),
        (
            "dl_seeds",
            "x",
            "--dl-seeds: 'x' is not a seed; valid: whole numbers from 0, such as 0,2",
        ),
        (
            "dl_seeds",
            ",",
            "--dl-seeds: no value given; valid: whole numbers from 0, such as 0,2",
        ),
        ("dl_timeout", "0", "--dl-timeout: '0' is not a time; valid: seconds above 0, such as 60"),
        (
            "dl_timeout",
            "inf",
            "--dl-timeout: 'inf' is not a time; valid: seconds above 0, such as 60",
        ),
        (
            "dl_timeout",
            "nan",
            "--dl-timeout: 'nan' is not a time; valid: seconds above 0, such as 60",
        ),
        (
            "dl_timeout",
            "soon",
            "--dl-timeout: 'soon' is not a time; valid: seconds above 0, such as 60",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_its_option_and_the_valid_ones(
    key: str, text: str, message: str
) -> None:
    assert error_of({key: text}) == message


def test_a_wrong_value_of_the_ini_file_names_the_key() -> None:
    assert error_of(ini={"dl_true_starts": "maybe"}) == (
        "the ini key dl_true_starts: 'maybe' is neither yes nor no; "
        "valid: true, yes, 1, on, false, no, 0, off"
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("YES", True),
        ("1", True),
        ("on", True),
        ("False", False),
        ("no", False),
        ("0", False),
        ("off", False),
    ],
)
def test_yes_and_no_in_the_ini_file(text: str, value: bool) -> None:
    assert settings_of(ini={"dl_true_starts": text}).true_starts is value


def test_an_unknown_code_is_refused_with_the_closest_one() -> None:
    message = error_of({"dl_select": "hnag"})

    assert message.startswith(
        "--dl-select: 'hnag' is neither a code nor a family; did you mean 'hang'? "
        "The families are: picklability, "
    )


def test_selected_and_ignored_codes_count_accordingly() -> None:
    assert Settings().counts("hang")
    assert not Settings(ignore=frozenset({"hang"})).counts("hang")
    assert Settings(select=frozenset({"hang"})).counts("hang")
    assert not Settings(select=frozenset({"hang"})).counts("slow")
    both = Settings(select=frozenset({"hang"}), ignore=frozenset({"hang"}))
    assert not both.counts("hang")


def test_a_report_file_is_tried_and_not_left_behind(tmp_path: Path) -> None:
    file = tmp_path / "report.json"

    assert settings_of({"dl_report": str(file)}).report == file
    assert not file.exists()


@pytest.mark.parametrize("content", ["", "kept"])
def test_a_report_file_of_before_stays_as_it_is(tmp_path: Path, content: str) -> None:
    file = tmp_path / "report.json"
    file.write_text(content, encoding="utf-8")

    settings_of({"dl_report": str(file)})

    assert file.read_text(encoding="utf-8") == content


def test_a_report_cannot_be_a_folder(tmp_path: Path) -> None:
    assert error_of({"dl_report": str(tmp_path)}) == (
        f"--dl-report: {str(tmp_path)!r} is a folder; valid: a file's path"
    )


def test_a_report_needs_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "none" / "report.json"

    assert error_of({"dl_report": str(file)}) == (
        f"--dl-report: {str(file)!r} cannot be written: there is no folder {str(file.parent)!r}"
    )


@given(st.lists(st.integers(0, 10**6), min_size=1), st.sampled_from([",", ", ", " ,", ",,"]))
def test_counts_are_read_in_order_and_once(counts: list[int], comma: str) -> None:
    text = comma.join(map(str, counts))

    assert settings_of({"dl_num_workers": text}).num_workers == tuple(dict.fromkeys(counts))


@given(st.text(max_size=8) | st.text("0123456789, ", max_size=8))
def test_any_text_gives_counts_or_a_clean_error(text: str) -> None:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if words and all(re.fullmatch("[0-9]+", word) for word in words):
        assert settings_of({"dl_seeds": text}).seeds == tuple(dict.fromkeys(map(int, words)))
        return
    message = error_of({"dl_seeds": text})
    assert message.startswith("--dl-seeds: ")
    assert message.endswith("valid: whole numbers from 0, such as 0,2")


@given(st.floats(min_value=1e-6, max_value=1e6))
def test_seconds_are_read(seconds: float) -> None:
    assert settings_of({"dl_timeout": repr(seconds)}).timeout == seconds
