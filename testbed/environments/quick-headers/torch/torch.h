// See extension.h.
#pragma once
#include <torch/extension.h>
namespace torch {
using namespace at;
}
