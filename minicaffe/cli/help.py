"""The help of the commands: options under headings by subject, and lines that are broken at spaces only."""

import shutil
import textwrap

import click

NO_BREAK = "\u2011"     # a hyphen at which textwrap breaks no line
LEAST_WIDTH = 38        # narrower help would break words
LEAST_TEXT = 24         # columns for the text of an option beside its name; with fewer the text is below the name
# Heading: names of the parameters of all commands below it. An option that is not listed is under "Options".
SUBJECTS = {
    "Nets and weights": (
        "solver net train_net test_net net_param train_net_param test_net_param train_state test_state weights model labels like "
        "level stage modules"),
    "Data": (
        "batch batch_size test_batch_size images_dim center_only listed ext mean scale raw_scale "
        "channel_swap shapes class_weights classes mirror"),
    "Learning rate": "base_lr lr_mult lr_policy gamma power stepsize stepvalue plateau_winsize",
    "Update": (
        "max_iter type momentum momentum2 rms_decay delta weight_decay regularization_type clip_gradients iter_size random_seed "
        "solver_type"),
    "Tests": (
        "test_iter test_interval test_initialization test_compute_loss eval_type ap_version show_per_class_result "
        "keep_best patience"),
    "Snapshots": "state resume keep snapshot snapshot_prefix snapshot_diff snapshot_format snapshot_after_train",
    "Reports and files": (
        "display average_loss debug_info json_path as_json watch html out force"),
    "Signals and numbers that are not finite": "sigint_effect sighup_effect nan",
    "Several processes": "global_batch scale_lr warmup wire overlap carrier sync_batch_norm timeout layer_wise_reduce",
    "Device and precision": "device gpu solver_mode device_id threads precision exact plan allocator",
    "Trust in the model file": "skip_unknown_fields allow_python_layers untrusted",
    "Messages": "quiet verbose debug",
}
FEWEST_GROUPED = 15     # options; fewer are one list


class Formatter(click.HelpFormatter):
    """Breaks lines at spaces only, not within ``--batch-size`` or ``float32|bf16``."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.width = max(min(self.width, shutil.get_terminal_size().columns - 2), LEAST_WIDTH)   # click's own least width is 50

    def write_usage(self, prog, args="", prefix=None):
        super().write_usage(prog, _unbroken(args), prefix)

    def write_text(self, text):
        super().write_text(_unbroken(text))

    def write_dl(self, rows, col_max=26, col_spacing=2):
        rows = list(rows)
        column = min(max(len(first) for first, _ in rows), col_max) + col_spacing
        if self.width - self.current_indent - column < LEAST_TEXT:
            column, col_max = 4, 0
        margin = " " * (self.current_indent + column)
        for first, second in rows:
            lines = textwrap.wrap(second, self.width - len(margin), break_long_words=False, break_on_hyphens=False)
            begin = f"{'':{self.current_indent}}{first:{column}}"
            if len(first) > col_max and lines:
                self.write(f"{begin.rstrip()}\n")
                begin = margin
            self.write(f"{begin}{lines[0] if lines else ''}".rstrip() + "\n")
            self.write("".join(f"{margin}{line}\n" for line in lines[1:]))

    def getvalue(self):
        return super().getvalue().replace(NO_BREAK, "-")


def _unbroken(text):
    return text.replace("-", NO_BREAK)


class Context(click.Context):
    """The context of a command of minicaffe."""

    formatter_class = Formatter


def write_options(command, ctx, formatter):
    """Write the options of a command, under headings if there are many."""
    records = [(param, record) for param in command.get_params(ctx)
               if isinstance(param, click.Option) and (record := param.get_help_record(ctx)) is not None]
    subject_of = {name: subject for subject, names in SUBJECTS.items() for name in names.split()}
    groups = {subject: [] for subject in ("Options", *SUBJECTS)}
    for param, record in records:
        last = "Messages" if "--help" in param.opts else "Options"
        subject = subject_of.get(param.name.removeprefix("field_"), last) if len(records) >= FEWEST_GROUPED else "Options"
        groups[subject].append(record)
    for subject, some in groups.items():
        if some:
            with formatter.section(subject):
                formatter.write_dl(some)
