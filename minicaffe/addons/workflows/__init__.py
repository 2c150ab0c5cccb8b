"""Tasks around a training: fine-tune a net, weigh classes, keep the best test, view wrong answers."""

OPTIONS = {"test": f"{__name__}.test_options", "train": f"{__name__}.train_options"}
COMMANDS = {
    "finetune": ("Train and test", f"{__name__}.finetune:finetune", "Train a pretrained net on other classes of pictures."),
}
