//! A tokenizer.json. The post-processor is kept apart: it trims offsets, and callers choose which
//! they want.
use serde_json::Value;
use tokenizers::{AddedToken, PostProcessor, PostProcessorWrapper, Tokenizer};

pub struct Encoded {
    pub ids: Vec<u32>,
    pub begins: Vec<u32>,
    pub ends: Vec<u32>,
}

pub struct Text {
    tokenizer: Tokenizer,
    post_processor: Option<PostProcessorWrapper>,
}

impl Text {
    /// `added` is a JSON list of added tokens that the file may lack, in the order of their ids; a
    /// token with `file_id` is left out where the file has another one of that id.
    pub fn new(json: &[u8], added: &str) -> Result<Text, String> {
        let mut tokenizer = Tokenizer::from_bytes(json).map_err(|e| e.to_string())?;
        let added: Vec<Value> = serde_json::from_str(added).map_err(|e| e.to_string())?;
        let known = tokenizer.get_added_tokens_decoder();
        for fields in added {
            let file_id = fields["file_id"].as_u64().map(|id| id as u32);
            let token: AddedToken = serde_json::from_value(fields).map_err(|e| e.to_string())?;
            if file_id.is_some_and(|id| known.contains_key(&id))
                || known
                    .values()
                    .any(|t| t.content == token.content && t.special == token.special)
            {
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
