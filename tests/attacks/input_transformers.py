"""Registers an IPython transformer that drops the lines of later cells."""

shell = get_ipython()
shell.input_transformers_cleanup.append(lambda lines: [])
shell.events.register("pre_run_cell", lambda *args: None)
