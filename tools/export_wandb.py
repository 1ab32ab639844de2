#!/usr/bin/env python3
"""Sends a run's metrics.jsonl to Weights & Biases, during the run or after it.

Called again it sends the steps that have come since. The newest one stays until a later one is there, since a
validation or a save may say more of it, and wandb takes nothing for a step that was sent: when the run has ended,
--last sends it, too. Where the file has other lines than those that were sent, since the run went back to an earlier
step or began anew, all of it goes to a run of its own, with keel_follows and keel_differs_from_step in its config. Needs
the package wandb, which Keel does not; WANDB_API_KEY, WANDB_MODE and the other variables of it are as wandb has them; what
was sent while WANDB_MODE is offline is not known to the next call. With --dry-run nothing is sent, and no package needed.
"""

import argparse
import hashlib
import itertools
import pathlib
import sys

import metrics_lines

# Of a run's config there.
SENT = "keel_lines_sent"  # metrics_lines.sent_text
FOLLOWS, DIFFERS = "keel_follows", "keel_differs_from_step"
FOLLOWED = "keel_followed_from_step"  # of the run that is followed, by the one with the next number


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="the run's folder, trainer.default_local_dir")
    parser.add_argument("--project", default="keel")
    parser.add_argument("--entity", help="user or team; default: wandb's own")
    parser.add_argument("--name", help="of the run; default: its folder's name")
    parser.add_argument("--id", help="of the run at wandb; default: made of the folder's path")
    parser.add_argument("--last", action="store_true", help="send the newest step, too: nothing more is said of it")
    parser.add_argument("--dry-run", action="store_true", help="say what would be sent")
    args = parser.parse_args()
    read = metrics_lines.read(args.run)
    steps = read.steps
    name = args.name or metrics_lines.run_name(args.run)
    if args.dry_run:
        return metrics_lines.describe(steps, f"wandb project {args.project}, run {name}", read.left_out_text())
    if not read.lines:
        return print(f"nothing to send: metrics.jsonl has no line of metrics{read.left_out_text()}")
    try:
        import wandb
    except ImportError as error:
        sys.exit(f"the package wandb cannot be imported ({error}): pip install wandb, or see what there is with --dry-run")
    path = str(pathlib.Path(args.run).resolve())
    base = args.id or hashlib.sha256(path.encode()).hexdigest()[:16]
    identity, follows = base, {}
    for number in itertools.count(2):
        run = wandb.init(
            project=args.project, entity=args.entity, resume="allow", id=identity, config=follows,
            name=metrics_lines.name_from(name, follows[DIFFERS]) if follows else name,
        )  # fmt: skip
        differs = run.config.get(FOLLOWED)
        if not differs and run.config.get(SENT):
            differs = metrics_lines.first_other_step(read.lines, run.config.get(SENT))
            if differs:
                print(metrics_lines.other_text(identity, differs, metrics_lines.name_from(name, differs)))
                run.config.update({FOLLOWED: differs})
        if not differs:
            break
        run.finish()
        follows = {FOLLOWS: identity, DIFFERS: differs}
        identity = f"{base}-{number}"
    first = run.step if run.resumed else -1
    if first > 0 and not run.config.get(SENT):
        print(metrics_lines.unchecked_text(identity))
    newest = max(steps)
    waits = newest >= first and not args.last
    sent = [step for step in steps if step >= first and not (waits and step == newest)]
    lines = list(itertools.takewhile(lambda line: not (waits and line[0] == newest), read.lines))
    # What is remembered is written first: what then is not sent, another call finds missing.
    config = {"keel_config": metrics_lines.config_text(args.run), SENT: metrics_lines.sent_text(lines)}
    run.config.update(config, allow_val_change=True)
    for step in sent:
        run.log(steps[step], step=step)
    run.finish()
    what = f"{len(sent)} of {len(steps)} steps sent; those before step {first} were there" if first > 0 else f"{len(sent)} steps sent"
    print(what + read.left_out_text())
    if waits:
        print(f"step {newest} is the newest, of which a validation or a save may still say something: --last sends it")


if __name__ == "__main__":
    main()
