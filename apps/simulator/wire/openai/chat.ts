import { generate, type Behaviour, type Generation, type ToolCall } from '../../model/generate.ts';
import { reflection, type Call, type Received } from '../wire-format.ts';
import { chatFrames } from './chat-frames.ts';
import { decodeChat, type ChatRequest } from './decode-chat.ts';
import { chatLogprobs, chatId, chatUsage, createdAt, finishReason, systemFingerprint } from './shapes.ts';

/** POST /v1/chat/completions. */
export function chatCall(received: Received): Call {
  const request = decodeChat(received);
  return {
    model: request.model,
    hash: request.ask.hash,
    user: request.user,
    stream: request.stream,
    body: (behaviour) => chatBody(request, behaviour, reflected(received, behaviour)),
    frames: (behaviour) =>
      chatFrames(request, generate(request.ask, behaviour), behaviour, reflected(received, behaviour)),
  };
}

/** An additional last member, or an empty text. */
function reflected(received: Received, behaviour: Behaviour): string {
  return behaviour.manner === 'reflect' ? `,"reflected":${reflection(received)}` : '';
}

function chatBody(request: ChatRequest, behaviour: Behaviour, extra: string): string {
  const { hash } = request.ask;
  const answer = generate(request.ask, behaviour);
  let choices = '';
  for (const [index, generation] of answer.generations.entries()) {
    const logprobs = chatLogprobs(generation.text, 0, request.topLogprobs);
    const finish = finishReason(generation.finish, request.legacyFunctions);
    choices += `${index === 0 ? '' : ','}{"index":${index},"message":${messageOf(generation, request.legacyFunctions)},"logprobs":${logprobs},"finish_reason":"${finish}"}`;
  }
  const usage = behaviour.omitUsage === true ? '' : `,"usage":${chatUsage(answer)}`;
  const model = JSON.stringify(behaviour.answersAs ?? request.model);
  return `{"id":"${chatId(hash)}","object":"chat.completion","created":${createdAt(hash)},"model":${model},"choices":[${choices}]${usage},"service_tier":${JSON.stringify(request.serviceTier)},"system_fingerprint":"${systemFingerprint}"${extra}}`;
}

function messageOf({ text, toolCalls, finish, thought }: Generation, legacyFunctions: boolean): string {
  const said = text === null ? 'null' : JSON.stringify(text);
  const [content, refusal] = finish === 'refusal' ? ['null', said] : [said, 'null'];
  // The member for thoughts in the format of DeepSeek and other OpenAI-compatible providers.
  const reasoning = thought === undefined ? '' : `,"reasoning_content":${JSON.stringify(thought.text)}`;
  const calls = toolCalls.length === 0 ? '' : callsMember(toolCalls, legacyFunctions);
  return `{"role":"assistant","content":${content}${reasoning},"refusal":${refusal}${calls},"annotations":[]}`;
}

function callsMember(toolCalls: readonly ToolCall[], legacyFunctions: boolean): string {
  const [first] = toolCalls;
  if (legacyFunctions && first !== undefined) {
    return `,"function_call":${JSON.stringify({ name: first.name, arguments: first.input })}`;
  }
  const calls = toolCalls.map(({ id, kind, name, input }) =>
    kind === 'custom'
      ? { id, type: kind, custom: { name, input } }
      : { id, type: kind, function: { name, arguments: input } },
  );
  return `,"tool_calls":${JSON.stringify(calls)}`;
}
