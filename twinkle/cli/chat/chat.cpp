// twinkle chat MODEL: questions from the terminal or a pipe, answers of the model or of adapters.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "twinkle/base/fields/options.h"
#include "twinkle/base/file.h"
#include "twinkle/cli/chat/conversation.h"
#include "twinkle/cli/chat/ctrl_c.h"
#include "twinkle/cli/chat/lines.h"
#include "twinkle/cli/command.h"
#include "twinkle/cli/device.h"
#include "twinkle/cli/model_path.h"
#include "twinkle/cli/options/flags.h"
#include "twinkle/cli/options/sampling.h"
#include "twinkle/engine/memory/text_of_error.h"
#include "twinkle/text/rust/shared_tokenizer.h"

namespace twinkle::cli {
namespace {

constexpr const char* kBase = "base";  // name of the model without an adapter

constexpr const char* kCommands =
    "  /reset           forget the messages so far\n"
    "  /adapter [NAME]  answer with this adapter, 'base' is the model; without NAME: list them\n"
    "  /help            list these commands\n"
    "  /exit            end the chat, as Ctrl-D; Ctrl-C ends an answer\n";

constexpr const char* kPipes =
    "Without a terminal each line of standard input is a question or a command, standard output "
    "gets the answers alone,\nand the first error ends the chat. Commands within the chat:\n";

struct ChatOptions {
  std::string model, system, device;
  std::vector<std::string> adapters;  // FOLDER or NAME=FOLDER
  SamplingFlags sampling;
  engine::EngineOptions engine;  // but model and device
};

struct NamedAdapter {
  std::string name, folder;
};

// NAME=FOLDER, or FOLDER, whose last part is the name.
NamedAdapter named_adapter(const std::string& text) {
  const size_t mark = text.find('=');
  if (mark != text.npos && !is_there(text)) return {text.substr(0, mark), text.substr(mark + 1)};
  std::string folder = text;
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  return {std::filesystem::path(folder).filename().string(), text};
}

std::vector<NamedAdapter> named_adapters(const std::vector<std::string>& given) {
  std::vector<NamedAdapter> out;
  for (const std::string& text : given) {
    NamedAdapter one = named_adapter(text);
    const auto same = [&](const NamedAdapter& other) { return other.name == one.name; };
    require(one.name != kBase && !one.name.empty() && std::ranges::none_of(out, same),
            Code::kInvalid, "cli: --adapter ", text, ": the name '", one.name, "' is ",
            one.name.empty()    ? "empty"
            : one.name == kBase ? "the model's own"
                                : "that of another adapter",
            "; give it as NAME=", one.folder);
    check_adapter(one.folder);
    out.push_back(std::move(one));
  }
  return out;
}

class Chat {
 public:
  Chat(const ChatOptions& o, bool terminal)
      : adapters_(named_adapters(o.adapters)),
        terminal_(terminal),
        path_(model_path(o.model)),
        template_(path_, {.max_length = 0, .default_system = o.system}),
        engine_(engine_of(o, path_), text::decoder_of),
        conversation_(engine_, template_, o.sampling.checked(), o.engine.sampler.kv_tokens) {
    engine_.run<engine::Done>(engine::Create{.tenant = kBase, .frozen = true});
    for (const NamedAdapter& adapter : adapters_)
      engine_.run<engine::Done>(
          engine::Create{.tenant = adapter.name, .directory = adapter.folder});
    conversation_.use(adapters_.empty() ? kBase : adapters_[0].name);
    if (terminal_) ctrl_c_.emplace();  // a pipe's Ctrl-C ends the program
    if (terminal_)
      std::fprintf(stderr, "%s, %s; /help lists the commands\n", o.model.c_str(),
                   conversation_.tenant().c_str());
  }

  void run() {
    Lines lines(STDIN_FILENO, ctrl_c_ ? ctrl_c_->descriptor() : -1);
    while (true) {
      if (terminal_) std::fputs("> ", stderr);
      const std::optional<std::string> line = lines.next();
      if (ctrl_c_ && ctrl_c_->pressed()) {
        ctrl_c_->forget();
        std::fputs("\n(Ctrl-D or /exit ends the chat)\n", stderr);
        continue;
      }
      if (!line) break;
      if (!answered(*line)) return;
    }
    if (terminal_) std::fputs("\n", stderr);
  }

 private:
  static engine::EngineOptions engine_of(const ChatOptions& o, const std::string& path) {
    engine::EngineOptions out = o.engine;
    out.model.path = path;
    out.model.device = device_or_default(o.device);
    return out;
  }

  // False: the chat is over. On a terminal an error is a line, and the chat goes on.
  bool answered(const std::string& line) {
    if (!terminal_) return take(line);
    try {
      return take(line);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "twinkle: %s\n", engine::text_of(e));
      return true;
    }
  }

  bool take(const std::string& line) {
    const size_t begin = line.find_first_not_of(" \t");
    if (begin == line.npos) return true;
    const bool is_command = line[0] == '/' && line.find('/', 1) == line.npos;
    if (!is_command) {
      answer(line);
      return true;
    }
    const size_t blank = std::min(line.find(' '), line.size());
    const std::string name = line.substr(0, blank);
    const size_t word = line.find_first_not_of(' ', blank);
    const std::string argument =
        word == line.npos ? "" : line.substr(word, line.find_last_not_of(' ') + 1 - word);
    if (name == "/exit") return false;
    if (name == "/reset") {
      conversation_.reset();
    } else if (name == "/adapter") {
      switch_to(argument);
    } else if (name == "/help") {
      std::fputs(kCommands, stderr);
    } else {
      const std::vector<std::string> all{"/reset", "/adapter", "/help", "/exit"};
      const std::string nearest = nearest_of(name, all);
      fail(Code::kInvalid, "cli: there is no command '", name, "'",
           nearest.empty() ? "" : "; did you mean '" + nearest + "'?",
           "; /help lists them, and a question may begin with a blank and then a slash");
    }
    return true;
  }

  void switch_to(const std::string& name) {
    std::string names;
    bool known = name == kBase;
    for (const NamedAdapter& adapter : adapters_) {
      names += adapter.name + (adapter.name == conversation_.tenant() ? " (answers)" : "") + ", ";
      known = known || adapter.name == name;
    }
    names += kBase + std::string(conversation_.tenant() == kBase ? " (answers)" : "");
    if (name.empty()) {
      std::fprintf(stderr, "%s\n", names.c_str());
      return;
    }
    require(known, Code::kNotFound, "cli: there is no adapter '", name, "'; there are ", names);
    conversation_.use(name);
  }

  void answer(const std::string& question) {
    const Listener listener{.show =
                                [](std::string_view piece) {
                                  std::fwrite(piece.data(), 1, piece.size(), stdout);
                                  std::fflush(stdout);
                                },
                            .stopped = [this] { return ctrl_c_ && ctrl_c_->pressed(); }};
    const Answer answer = conversation_.ask(question, listener);
    std::puts("");
    std::fflush(stdout);
    if (ctrl_c_) ctrl_c_->forget();
    if (!terminal_ && !answer.cut) return;
    std::fprintf(stderr, "(%lld tokens, %.1f tokens/s%s)\n",
                 static_cast<long long>(answer.num_tokens),
                 static_cast<double>(answer.num_tokens) / std::max(answer.seconds, 1e-9),
                 answer.cut ? ", cut: --max-tokens or the context ends here" : "");
  }

  const std::vector<NamedAdapter> adapters_;
  const bool terminal_;
  const std::string path_;
  const text::Template template_;
  engine::Engine engine_;
  Conversation conversation_;
  std::optional<CtrlC> ctrl_c_;
};

}  // namespace

void chat(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("chat", "Chat with a model, and with adapters of it");
  command->footer(std::string(kPipes) + kCommands);
  auto o = std::make_shared<ChatOptions>();
  command
      ->add_option("model", o->model,
                   "smollm2, directory, .gguf file with a tokenizer beside it, or hub id")
      ->required();
  command
      ->add_option("--adapter", o->adapters,
                   "PEFT directories, FOLDER or NAME=FOLDER; the first one answers at the start")
      ->type_name("TEXT");
  command->add_option("--system", o->system, "system message");
  add_sampling(*command, o->sampling);
  add_device(*command, o->device);
  add_options(*command, o->engine,
              {"mixed_precision", "kv_tokens", "prefill_tokens", "prefix_cache", "memory_share",
               "deterministic", "decode_graphs"});
  command->callback([o, &action] {
    o->sampling.checked();
    action = [o](const std::string&) { Chat(*o, ::isatty(STDIN_FILENO) == 1).run(); };
  });
}

}  // namespace twinkle::cli
