"""Exercises of chapter 4: replace each `...`, then run ``pytest test_chapter4.py`` here."""


def inner_product_backward(X, W, dY):
    """Return the gradients (dX, dW, db) of Y = X W^T + b, given that of Y; X is (N, K), W is (M, K), dY is (N, M)."""
    ...


def softmax_loss_gradient(scores, labels):
    """Return the gradient with respect to the scores, (N, K), of the mean over N of -log(softmax(scores)[label]).

    It must be right for scores of 1000, too.
    """
    ...


def numeric_gradient(loss, x, h):
    """Return the gradient of `loss`, a function of an array, at x, by central differences of step h; x is as before afterwards."""
    ...
