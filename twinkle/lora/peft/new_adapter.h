// The config of an adapter that is to be made, checked as it was given: by the names of peft's
// LoraConfig, values of JSON. What a finished adapter's file may hold besides, peft_config reads.
#pragma once
#include "twinkle/base/json.h"

namespace twinkle::lora {

// The same fields in their one form: r in place of `rank`, its longer name; patterns are objects,
// ["all-linear"] is "all-linear", an empty list of target_modules besides target_parameters is
// null, and with task_type "SEQ_CLS" modules_to_save is ["score"]. Of what is not given r alone is
// added. Error kInvalid: a value of another type or out of range, with the field, the value and
// what it must be; two fields that exclude each other; a feature of peft that is not there.
JsonObject new_adapter_fields(JsonObject given);

}  // namespace twinkle::lora
