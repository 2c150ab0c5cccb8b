"""The help of the commands: options under headings by subject."""

import click

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


def write_options(command, ctx, formatter):
    """Write the options of a command to its --help, under headings if there are many; called by `CaffeCommand.format_options`."""
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
