#include "twinkle/model/borders.h"

namespace twinkle::model {

Borders& no_borders() {
  static Borders none;
  return none;
}

}  // namespace twinkle::model
