//! A tokenizer.json. The post-processor is kept apart: it trims offsets, and callers choose which
//! they want.
use serde_json::Value;
use tokenizers::{AddedToken, PostProcessor, PostProcessorWrapper, Tokenizer};

pub struct Encoded {
    pub ids: Vec<u32>,
    pub begins: Vec<u32>,
    pub ends: Vec<u32>,
}

/// The first value of `key` in a part of a tokenizer that has this `type`.
fn value_in<'a>(part: &'a Value, kind: &str, key: &str) -> Option<&'a Value> {
    if part["type"] == kind {
        return part.get(key);
    }
    let parts: Vec<&Value> = match part {
        Value::Array(items) => items.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        _ => vec![],
    };
    parts.into_iter().find_map(|item| value_in(item, kind, key))
}

/// An error, where the file has other values than a tokenizer's class puts in their place.
fn refuse_others(tokenizer: &Tokenizer, applied: &Value) -> Result<(), String> {
    let pre_tokenizer = serde_json::to_value(tokenizer.get_pre_tokenizer());
    let normalizer = serde_json::to_value(tokenizer.get_normalizer());
    for (key, part, kind, field) in [
        (
            "add_prefix_space",
            pre_tokenizer,
            "ByteLevel",
            "add_prefix_space",
        ),
        ("do_lower_case", normalizer, "BertNormalizer", "lowercase"),
    ] {
        let part = part.map_err(|e| e.to_string())?;
        let here = value_in(&part, kind, field) == Some(&Value::Bool(true));
        match applied[key].as_bool() {
            Some(there) if there != here => {
                return Err(format!(
                    "{key} is {here} here and {there} in tokenizer_config.json, whose \
                     tokenizer_class applies that; make them the same"
                ))
            }
            _ => (),
        }
    }
    Ok(())
}

pub struct Text {
    tokenizer: Tokenizer,
    post_processor: Option<PostProcessorWrapper>,
}

impl Text {
    /// `settings` is a JSON object. Its `added` lists added tokens that the file may lack, in the
    /// order of their ids: a token with `file_id` is left out where the file has another one of
    /// that id; one with `has_flags` is added again where the file has it with other flags. Its
    /// `applied` has values that must be the file's.
    pub fn new(json: &[u8], settings: &str) -> Result<Text, String> {
        let mut tokenizer = Tokenizer::from_bytes(json).map_err(|e| e.to_string())?;
        let settings: Value = serde_json::from_str(settings).map_err(|e| e.to_string())?;
        refuse_others(&tokenizer, &settings["applied"])?;
        let known = tokenizer.get_added_tokens_decoder();
        for fields in settings["added"].as_array().into_iter().flatten() {
            let file_id = fields["file_id"].as_u64().map(|id| id as u32);
            let has_flags = fields["has_flags"] == true;
            let token: AddedToken =
                serde_json::from_value(fields.clone()).map_err(|e| e.to_string())?;
            let is_known = |t: &AddedToken| {
                t.content == token.content && t.special == token.special && !has_flags
                    || *t == token
            };
            if file_id.is_some_and(|id| known.contains_key(&id)) || known.values().any(is_known) {
                continue;
            }
            if token.special {
                tokenizer
                    .add_special_tokens([token])
                    .map_err(|e| e.to_string())?;
            } else {
                tokenizer.add_tokens([token]).map_err(|e| e.to_string())?;
            }
        }
        tokenizer.with_truncation(None).map_err(|e| e.to_string())?;
        tokenizer.with_padding(None);
        let post_processor = tokenizer.get_post_processor().cloned();
        tokenizer.with_post_processor(None::<PostProcessorWrapper>);
        Ok(Text {
            tokenizer,
            post_processor,
        })
    }

    /// Offsets are bytes of `text`; `trimmed` ones are those that `transformers` shows.
    pub fn encode(&self, text: &str, special: bool, trimmed: bool) -> Result<Encoded, String> {
        let mut encoding = self
            .tokenizer
            .encode(text, false)
            .map_err(|e| e.to_string())?;
        if let (Some(post), true) = (&self.post_processor, special || trimmed) {
            encoding = post
                .process(encoding, None, special)
                .map_err(|e| e.to_string())?;
        }
        let offsets = encoding.get_offsets();
        Ok(Encoded {
            ids: encoding.get_ids().to_vec(),
            begins: offsets.iter().map(|o| o.0 as u32).collect(),
            ends: offsets.iter().map(|o| o.1 as u32).collect(),
        })
    }

    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, String> {
        self.tokenizer
            .decode(ids, skip_special)
            .map_err(|e| e.to_string())
    }

    pub fn id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    pub fn token(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }

    pub fn size(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }
}
