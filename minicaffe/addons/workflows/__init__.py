"""What people do around a training: fine-tune a net, weigh classes, keep the best test, look at wrong answers."""

COMMANDS = {
    "finetune": ("Train and test", f"{__name__}.finetune:finetune", "Train a pretrained net on other classes of pictures."),
}
