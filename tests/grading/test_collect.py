"""Who handed in what, from the shapes that folders come in."""

import pytest

from mptutor.grading.collect import collect, shard

NAME = "01_number_formats.ipynb"


def put(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")


def found(*paths):
    return [(s.student, s.lesson, s.file) for s in collect(paths)]


def test_as_nbgrader_collects(tmp_path):
    put(
        tmp_path,
        f"ben/01_number_formats/{NAME}",
        "ben/01_number_formats/timestamp.txt",
        f"ada/01_number_formats/{NAME}",
        "ada/05_loss_scaling/05_loss_scaling.ipynb",
    )
    assert found(tmp_path) == [
        ("ada", "01", NAME),
        ("ben", "01", NAME),
        ("ada", "05", "05_loss_scaling.ipynb"),
    ]


def test_all_in_one_folder(tmp_path):
    put(
        tmp_path,
        f"ada_{NAME}",
        "ben-01_number_formats (1).ipynb",
        "cy.ipynb",
        "dan.pdf",
        ".DS_Store",
    )
    assert found(tmp_path) == [
        ("cy", None, "cy.ipynb"),
        ("dan", None, "dan.pdf"),
        ("ada", "01", f"ada_{NAME}"),
        ("ben", "01", "ben-01_number_formats (1).ipynb"),
    ]


def test_one_folder_a_student(tmp_path):
    put(tmp_path, "ada/my work.ipynb", f"ben/{NAME}", "cy/essay.pdf")
    (tmp_path / "dan").mkdir()
    assert found(tmp_path) == [
        ("ada", None, "my work.ipynb"),
        ("cy", None, "essay.pdf"),
        ("dan", None, ""),
        ("ben", "01", NAME),
    ]


def test_the_right_name_wins_and_others_are_noted(tmp_path):
    folder = "ada/01_number_formats"
    put(
        tmp_path,
        f"{folder}/01_copy.ipynb",
        f"{folder}/{NAME}",
        f"{folder}/.ipynb_checkpoints/x.ipynb",
    )
    (submission,) = collect([tmp_path])
    assert submission.file == NAME and submission.others == ("01_copy.ipynb",)

    put(tmp_path, "ben/01_number_formats/number formats (1).ipynb")
    assert ("ben", "01", "number formats (1).ipynb") in found(tmp_path)


def test_several_exercises_in_a_students_folder(tmp_path):
    put(tmp_path, f"ada/{NAME}", "ada/02_rounding.ipynb", "ada/notes.txt")
    put(tmp_path, "ada/04_master_weights/04_master_weights.ipynb")
    assert [entry for entry in found(tmp_path) if entry[1]] == [
        ("ada", "01", NAME),
        ("ada", "02", "02_rounding.ipynb"),
        ("ada", "04", "04_master_weights.ipynb"),
    ]


def test_nothing_is_dropped_silently(tmp_path):
    put(tmp_path, "ada.pdf", "ada.ipynb", f"ben_{NAME}", "ben 01_number_formats (1).ipynb")
    noted = {s.student: (s.file, s.others) for s in collect([tmp_path])}
    assert noted["ada"] == ("ada.ipynb", ("ada.pdf",))
    assert noted["ben"] == ("ben 01_number_formats (1).ipynb", (f"ben_{NAME}",))


def test_a_single_file(tmp_path):
    put(tmp_path, NAME)
    assert found(tmp_path / NAME) == [("01_number_formats", "01", NAME)]
    with pytest.raises(FileNotFoundError, match="nothing at"):
        collect([tmp_path / "none"])


def test_a_link_to_a_folder_is_one_submission_and_not_searched(tmp_path):
    put(tmp_path, f"elsewhere/secret/{NAME}")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "eve").symlink_to(tmp_path / "elsewhere")
    assert found(tmp_path / "in") == [("eve", None, "eve")]


def test_shards_are_a_partition():
    for count in (1, 2, 3, 7):
        parts = [shard(list(range(20)), index, count) for index in range(1, count + 1)]
        assert sorted(x for part in parts for x in part) == list(range(20))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
