/* PyTorch's headers include this name and use nothing of it. */
