"""What users hand to the payload by mistake: numbers, empty variables, texts that are none, directories that vanish."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from unittest.mock import patch

import allreduce_check
import mnist_ddp
import pytest
import search
from launching import PAYLOAD, run_code, run_ranks
from training import TrainingError, options
from training.language.options import parse_arguments
from training.language.text import open_text, source_files
from training.metrics import Metrics


def of_argv(parse):
    """A function that parses a line which the program finds in sys.argv."""

    def parse_line(line):
        with patch.object(sys, "argv", ["program", *line]):
            return parse()

    return parse_line


#: What parses the command line of each program.
PARSES = {
    "mnist_ddp.py": mnist_ddp.parse_arguments,
    "lm_fsdp.py": parse_arguments,
    "search.py": lambda line: search.parse_arguments(["--study", "study", "--trials", "2", *line]),
    "allreduce_check.py": allreduce_check.parse_options,
    "mnist_single.py and mnist_multi.py": of_argv(partial(options.parse_rung, "", gpu=False)),
    "mnist_horovod.py": of_argv(partial(options.parse_rung, "", gpu=False, resumes=False)),
}
WRONG = ("-1", "nan", "inf", "-inf", "1e400", "99999999999999999999", "9" * 5000, "", "x")
#: Options that may be 0.
FROM_ZERO = ("--seed", "--warmup", "--profile-ranks")


@pytest.mark.parametrize("parse", PARSES.values(), ids=PARSES)
def test_a_number_that_makes_no_sense_is_one_line_and_status_2(parse, monkeypatch, capsys):
    monkeypatch.delenv("RANK", raising=False)
    with patch.object(options.OneLineParser, "parse_args", autospec=True, side_effect=LookupError) as parse_args:
        with pytest.raises(LookupError):
            parse([])
        (parser, *_), _ = parse_args.call_args
    numbers = [action for action in parser._actions if action.type not in (None, options.text, options.path)]
    assert [action for action in numbers if action.type in (int, Path)] == [], "without a limit"
    assert len(numbers) > 2
    for action in numbers:
        option = action.option_strings[0]
        name = getattr(action.type, "__name__", "")
        wrong = WRONG if option != "--threshold" else [value for value in WRONG if value]  # empty: none is expected
        for value in (*wrong, *([] if option in FROM_ZERO else ["0"]), *(["1.5"] if name == "integer" else [])):
            with pytest.raises(SystemExit) as ended:
                parse([f"{option}={value}"])
            output, errors = capsys.readouterr()
            assert (ended.value.code, output) == (2, ""), (option, value[:20])
            assert re.fullmatch(rf"[^\n]+: [^\n]*{option}[^\n]*\. See --help\n", errors), (option, errors[:300])
            assert len(errors) < 300, (option, errors[:300])


def test_a_wrong_command_line_is_reported_by_rank_0_alone():
    ranks = run_ranks(2, "--timeout", "1e13", status=2)
    assert ranks[0].stderr.count("\n") == 1 and ranks[1].stderr == ""


def test_the_longest_and_the_shortest_time_limit_are_ones_that_torch_can_compute_with(small_mnist):
    line = ("--epochs", 1, "--data", small_mnist, "--timeout")
    run_ranks(2, *line, "1e9")
    run_ranks(2, *line, "1e-300", status=1)


@pytest.mark.parametrize(("output", "expected"), [(">&-", b""), ("", b"\\udce9\n")])
def test_an_output_that_is_closed_and_a_path_that_is_no_text_end_no_training(output, expected):
    code = "import sys, training; sys.stdout.isatty(); print('\\udce9')"
    command = f'PYTHONIOENCODING=utf-8:strict {sys.executable} -c "$0" {output}'
    done = subprocess.run(["bash", "-c", command, code], cwd=PAYLOAD, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


@pytest.fixture
def corpus(tmp_path):
    """A directory with a text."""
    (tmp_path / "corpus" / "part").mkdir(parents=True)
    (tmp_path / "corpus" / "part" / "a").write_text("a text " * 100)
    return tmp_path / "corpus"


def test_the_directories_of_trainings_below_a_text_are_no_part_of_it(corpus, alone):
    run = corpus / "run"
    (run / "checkpoints").mkdir(parents=True)
    first = open_text(corpus, run, 8, alone).fingerprint
    for name in ("run/metrics.jsonl", "run/checkpoints/step", "rung/checkpoints/best.pt", "study/study.journal"):
        (corpus / name).parent.mkdir(parents=True, exist_ok=True)
        (corpus / name).write_text("not a text")
    (corpus / "trace-rank-0.json").write_text("{}")
    assert open_text(corpus, run, 8, alone).fingerprint == first
    assert open_text(corpus, None, 8, alone).fingerprint == first
    with pytest.raises(TrainingError, match=f"^{corpus}: --modelpath is the directory of the text. Choose another one"):
        source_files(corpus, corpus)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (os.mkfifo, "a FIFO, not a regular file. Remove it"),
        (lambda path: path.symlink_to("/dev/null"), "a link to a device, not a regular file. Remove it"),
        (lambda path: path.symlink_to("absent"), "cannot be read .No such file or directory.. Remove it"),
        (lambda path: path.symlink_to("part"), "a link to a directory, not a regular file. Remove it"),
    ],
)
def test_what_cannot_be_a_part_of_a_text_is_named(corpus, make, words):
    make(corpus / "odd")
    with pytest.raises(TrainingError, match=f"^{corpus / 'odd'}: {words}"):
        source_files(corpus)


def test_data_that_is_no_text_is_called_what_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    for name, words in {"/dev/null": "a device", "pipe": "a FIFO", "x": "cannot be read"}.items():
        with pytest.raises(TrainingError, match=f"^{name}: {words}.*. Name a text with --data"):
            source_files(Path(name))


def test_a_directory_of_a_text_that_cannot_be_read_is_named(corpus, monkeypatch):
    def scandir(path, scan=os.scandir):
        if str(path).endswith("part"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(TrainingError, match=f"^{corpus / 'part'}: cannot be read .Permission denied."):
        source_files(corpus)


def test_lines_of_a_file_that_is_deleted_during_a_run_are_written_again(tmp_path, capsys):
    values = dict.fromkeys(("loss", "accuracy", "images_per_second", "learning_rate", "seconds"), 1.0)
    with Metrics(tmp_path, options={}) as metrics:
        metrics.epoch(1, **values, world_size=1)
        (tmp_path / "metrics.jsonl").unlink()
        metrics.epoch(2, **values, world_size=1)
    assert (tmp_path / "metrics.jsonl").read_text().count("epoch") == 2
    assert (
        "metrics.jsonl: was deleted while this program ran; all its lines are written again" in capsys.readouterr().out
    )


REMOVED = """
import shutil
sys.argv = ["{script}", {arguments}]
import {module} as program
from training.progress import Progress
Progress.__exit__ = lambda *_: shutil.rmtree("{run}", ignore_errors=True)
program.main(program.parse_arguments(sys.argv[1:]))
"""


@pytest.mark.parametrize("module", ["mnist_ddp", "lm_fsdp"])
def test_a_directory_that_is_deleted_during_a_run_is_one_sentence(small_mnist, corpus, tmp_path, module):
    run = tmp_path / "run"
    line = {
        "mnist_ddp": ["--epochs", "2", "--data", str(small_mnist)],
        "lm_fsdp": ["--steps=2", "--every=9", "--size=100K", "--context=8", f"--data={corpus / 'part' / 'a'}"],
    }[module]
    arguments = ", ".join(map(repr, [*line, "--modelpath", str(run)]))
    code = REMOVED.format(script=f"{module}.py", module=module, arguments=arguments, run=run)
    ranks = run_code(2, code, status=1)
    sentence = rf"rank 0: {run}\S*: cannot be written \(No such file or directory\). Its directory was removed [^\n]+\n"
    assert re.fullmatch(sentence, ranks[0].stderr), ranks[0].stderr
    assert ranks[1].stderr == ""


def test_a_checkpoint_that_is_deleted_while_it_is_written_is_written_again(corpus, tmp_path):
    saved = tmp_path / "run" / "checkpoints" / "step-00000002"
    line = ["--steps=2", "--every=2", "--size=100K", "--context=8", f"--data={corpus}", f"--modelpath={tmp_path}/run"]
    code = REMOVED.format(script="lm_fsdp.py", module="lm_fsdp", arguments=", ".join(map(repr, line)), run=saved)
    wait = f"[Path('{saved}').exists() or time.sleep(0.01) for _ in range(200)]"
    run_code(1, code.replace("lambda *_: ", f"lambda *_: {wait} and "))
    assert (saved / "manifest.json").is_file()
