import { generate, type Behaviour, type Generation, type GenerateRequest } from '../../model/generate.ts';
import { hashText, mixHash } from '../../model/hash.ts';
import { rateToken } from '../../model/log-probabilities.ts';
import { piecesOf } from '../../model/pieces.ts';
import { countTokens, splitTokens } from '../../model/tokens.ts';
import { reflection, type Call, type Received } from '../wire-format.ts';
import {
  checkSampling,
  isTokens,
  optionalBoolean,
  optionalNumber,
  optionalText,
  refuse,
  requiredModel,
  stopSequences,
  streamOptions,
  tooLong,
  wrongType,
} from './checks.ts';
import { createdAt, doneFrame, finishReason, frame, takeTurns, textId, textUsage } from './shapes.ts';

// All answers are held in memory; the limit is the same as for the inputs of embeddings.
const promptsMax = 2_048;

type TextRequest = ReturnType<typeof decodeText>;
type Choice = { prompt: string; generation: Generation };

/**
 * POST /v1/completions. With n choices per prompt, the choices are numbered `prompt index × n + i`, as in the real service.
 */
export function textCall(received: Received): Call {
  const request = decodeText(received);
  const extra = (behaviour: Behaviour): string =>
    behaviour.manner === 'reflect' ? `,"reflected":${reflection(received)}` : '';
  return {
    model: request.model,
    hash: request.hash,
    user: request.user,
    stream: request.stream,
    body: (behaviour) => textBody(request, behaviour, extra(behaviour)),
    frames: (behaviour) => textFrames(request, behaviour, extra(behaviour)),
  };
}

function decodeText({ json: body, text }: Received) {
  const model = requiredModel(body);
  const prompts = readPrompts(body['prompt']);
  checkSampling(body);
  const options = streamOptions(body);
  const choiceCount = optionalNumber(body, 'n', { min: 1, max: 128, whole: true }) ?? 1;
  const bestOf = optionalNumber(body, 'best_of', { min: 0, max: 20, whole: true }) ?? choiceCount;
  if (bestOf < choiceCount) {
    refuse(
      `You requested that the server return more choices than it will generate (best_of=${bestOf} must be at least n=${choiceCount}).`,
      'best_of',
      null,
    );
  }
  if (bestOf > choiceCount && options.stream) {
    refuse("You cannot stream results with 'best_of' greater than 'n'.", 'best_of', null);
  }
  const logprobs = optionalNumber(body, 'logprobs', { min: 0, max: 5, whole: true });
  const tokensMax = optionalNumber(body, 'max_tokens', { min: 0, whole: true }) ?? 16;
  const stop = stopSequences(body);
  const hash = hashText(
    `${model}\n${typeof body['seed'] === 'number' ? body['seed'] : ''}\n${JSON.stringify(body['prompt'])}`,
  );
  const asks = prompts.map((prompt, index): GenerateRequest => ({
    hash: index === 0 ? hash : mixHash(hash, index),
    lastUserText: prompt.text,
    endsWithToolResult: false,
    rawBody: text,
    promptTokens: prompt.tokens,
    choiceCount: bestOf, // all candidates are generated and billed; the first n are returned
    tokensMax,
    stop,
    tools: [],
    toolUse: 'none',
    parallelToolUse: false,
    jsonSchema: undefined,
  }));
  const echo = optionalBoolean(body, 'echo');
  return { model, hash, user: optionalText(body['user']), ...options, choiceCount, logprobs, prompts, asks, echo };
}

/** One or several strings, or one or several lists of token numbers; absent or null means the document separator. */
function readPrompts(prompt: unknown): { text: string; tokens: number }[] {
  if (prompt === undefined || prompt === null) return [{ text: '<|endoftext|>', tokens: 1 }];
  if (typeof prompt === 'string') return [{ text: prompt, tokens: countTokens(prompt) }];
  const expected = 'a string, an array of strings, an array of integers or an array of arrays of integers';
  if (!Array.isArray(prompt)) return wrongType('prompt', expected, prompt);
  if (prompt.length === 0) {
    return refuse("Invalid 'prompt': empty array. Expected an array with minimum length 1.", 'prompt', 'empty_array');
  }
  if (isTokens(prompt)) return [fromTokens(prompt)];
  if (prompt.length > promptsMax) return tooLong('prompt', prompt.length, promptsMax);
  return prompt.map((item: unknown) => {
    if (typeof item === 'string') return { text: item, tokens: countTokens(item) };
    return isTokens(item) ? fromTokens(item) : wrongType('prompt', expected, prompt);
  });
}

/** Token numbers have no text here; each is shown as its number, so that `echo` still shows the input. */
function fromTokens(tokens: readonly number[]): { text: string; tokens: number } {
  return { text: tokens.map((token) => `<|${token}|>`).join(''), tokens: tokens.length };
}

function answerText(request: TextRequest, behaviour: Behaviour) {
  const choices: Choice[] = [];
  let promptTokens = 0;
  let completionTokens = 0;
  for (const [index, ask] of request.asks.entries()) {
    const answer = generate(ask, behaviour);
    promptTokens += answer.promptTokens;
    completionTokens += answer.completionTokens;
    const prompt = request.echo ? (request.prompts[index]?.text ?? '') : '';
    for (const generation of answer.generations.slice(0, request.choiceCount)) choices.push({ prompt, generation });
  }
  return { choices, usage: textUsage({ promptTokens, completionTokens }) };
}

function headOf(request: TextRequest, behaviour: Behaviour): string {
  const model = JSON.stringify(behaviour.answersAs ?? request.model);
  return `{"id":"${textId(request.hash)}","object":"text_completion","created":${createdAt(request.hash)},"model":${model},"choices":`;
}

function textBody(request: TextRequest, behaviour: Behaviour, extra: string): string {
  const { choices, usage } = answerText(request, behaviour);
  const items = choices.map(({ prompt, generation }, index) => {
    const text = prompt + (generation.text ?? '');
    return item(text, index, logprobsOf(text, 0, 0, request.logprobs), `"${finishReason(generation.finish, false)}"`);
  });
  const usageMember = behaviour.omitUsage === true ? '' : `,"usage":${usage}`;
  return `${headOf(request, behaviour)}[${items.join(',')}]${usageMember}${extra}}`;
}

function* textFrames(request: TextRequest, behaviour: Behaviour, extra: string): Generator<string> {
  const { choices, usage } = answerText(request, behaviour);
  const head = headOf(request, behaviour);
  const includeUsage = request.includeUsage && behaviour.omitUsage !== true;
  const nullUsage = includeUsage ? ',"usage":null' : '';
  let first = extra;
  const turns = choices.map((choice, index) => choicePieces(request, behaviour, choice, index));
  for (const item of takeTurns(turns)) {
    yield frame(`${head}[${item}]${nullUsage}${first}}`);
    first = '';
  }
  if (includeUsage) yield frame(`${head}[],"usage":${usage}}`);
  yield doneFrame;
}

function* choicePieces(request: TextRequest, behaviour: Behaviour, choice: Choice, index: number): Generator<string> {
  const text = choice.prompt + (choice.generation.text ?? '');
  let position = 0;
  for (const { piece, start } of piecesOf(text, behaviour.inOnePiece)) {
    yield item(piece, index, logprobsOf(piece, position++, start, request.logprobs), 'null');
  }
  yield item('', index, 'null', `"${finishReason(choice.generation.finish, false)}"`);
}

function item(text: string, index: number, logprobs: string, finish: string): string {
  return `{"text":${JSON.stringify(text)},"index":${index},"logprobs":${logprobs},"finish_reason":${finish}}`;
}

/** The old format: parallel arrays, with alternatives as maps from token to log probability. */
function logprobsOf(text: string, position: number, offset: number, alternatives: number | undefined): string {
  if (alternatives === undefined) return 'null';
  const tokens = splitTokens(text);
  const rated = tokens.map((token, index) => rateToken(token, position + index, alternatives));
  let at = offset;
  return JSON.stringify({
    text_offset: tokens.map((token) => (at += token.length) - token.length),
    token_logprobs: rated.map(({ logprob }) => logprob),
    tokens,
    top_logprobs:
      alternatives === 0
        ? null
        : rated.map((token) => Object.fromEntries(token.alternatives.map((other) => [other.token, other.logprob]))),
  });
}
