"""Trains one configuration: data, model and optimizer from a ``Config``; records and checkpoints on disk.

The interface::

    result = run(
        config,                      # experiments.config.Config; checked with config.check()
        out_dir,                     # run directory, or None to keep nothing on disk
        members=None,                # [Member(seed, {"learning_rate": 0.1}), ...]; default: config's seeds
        resume=False,                # continue an unfinished run; a finished one is returned as recorded
        progress=None,               # training.progress.Progress; default quiet
        checkpoints=True,            # False: records only (short runs of a grid)
        tensorboard=False,           # also event files, in out_dir/tensorboard (extra "tensorboard")
        command=None,                # argv for environment.json; default sys.argv
    )                                # -> RunResult

``members`` train together in one compiled program (or in a few, see ``config.training.together``). They may
differ in seed and in any hyperparameter of ``config.HYPERPARAMETERS`` that the optimizer has, so a whole
(learning rate x seed) grid of one optimizer is one call. Two members with the same seed see the same batches
and start from the same parameters. With explicit members, each line of metrics.jsonl also has ``"member":
index``; summary.json always has ``"members": [{"seed", "hyperparameters", "final", "diverged_at"}, ...]`` in
the same order. ``records.extract_run(run_dir, new_dir, members=[...])`` writes some of the members (those of
the chosen learning rate) as a run directory of their own, so a comparison keeps its grids in
``grids/<label>`` and the choices in ``runs/<label>``. A member whose loss is no longer finite stops the run, or
is dropped where ``training.on_nonfinite=drop`` (its ``final`` is then null, ``diverged_at`` its step).

    RunResult:    status "finished", steps, out_dir, steps_per_second, compile_seconds, members
    MemberResult: seed, hyperparameters, final {"validation": {"loss", "accuracy"}, "test": {...}} or None,
                  diverged_at, metrics (that member's lines of metrics.jsonl)

Errors (all have ``.exit_code``; ``str(error)`` is one line: print it and exit with the code, no traceback):
``ConfigError`` (2, from config.check), ``RunError`` (2: the folder holds another run, cannot be written, disk
full, resumed with another config), ``NonFiniteLoss`` (1), ``RunStopped`` (130 or 143: Ctrl-C or SIGTERM, with
a checkpoint written). All but ConfigError are subclasses of ``RunError``, in ``training.errors``.

Validation is evaluated every ``eval_every`` steps and at the end; test at the end only, or, where there is no
validation split, at every evaluation. Steps count from 1: a line says what was so after that many steps.
"""
