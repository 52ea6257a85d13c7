import { isUtf8 } from 'node:buffer';
import { countTokens } from '../model/tokens.ts';

export type TuningMethod = 'supervised' | 'dpo' | 'reinforcement';
/** A job's training data, or the reason why it cannot be used; `message` has the service's wording. */
export type TrainingData = { examples: number; tokens: number } | { flaw: string };

// The service's minimum.
const examplesMin = 10;
type Json = Record<string, unknown>;

/**
 * Reads a training or validation file: JSON Lines, each in the form of the method. Errors include the line number, from 1.
 */
export function readTrainingData(bytes: Uint8Array, method: TuningMethod): TrainingData {
  if (!isUtf8(bytes)) return { flaw: 'Invalid file format. The file is not encoded as UTF-8.' };
  const lines = Buffer.from(bytes).toString().split('\n');
  let examples = 0;
  let tokens = 0;
  for (const [index, line] of lines.entries()) {
    if (line.trim() === '') continue;
    const problem = problemOf(line, method);
    if (problem !== undefined) return { flaw: `Invalid file format. Line ${index + 1}${problem}` };
    examples++;
    tokens += countTokens(line);
  }
  if (examples < examplesMin) {
    return { flaw: `Training file has ${examples} example(s), but must have at least ${examplesMin} examples` };
  }
  return { examples, tokens };
}

/** Continues a sentence that begins with the line's number. */
function problemOf(line: string, method: TuningMethod): string | undefined {
  let example: unknown;
  try {
    example = JSON.parse(line);
  } catch {
    return ' is not valid JSON.';
  }
  if (!isObject(example)) return ' is not a JSON object.';
  if (method !== 'dpo') return messagesProblem(example['messages'], 'messages', method === 'supervised');
  const input = example['input'];
  if (!isObject(input)) return ', key "input" is missing or no object.';
  return (
    messagesProblem(input['messages'], 'input.messages', false) ??
    messagesProblem(example['preferred_output'], 'preferred_output', true) ??
    messagesProblem(example['non_preferred_output'], 'non_preferred_output', true)
  );
}

function messagesProblem(messages: unknown, key: string, needsAssistant: boolean): string | undefined {
  if (!Array.isArray(messages) || messages.length === 0) return `, key "${key}" must be a non-empty array.`;
  let hasAssistant = false;
  for (const [at, message] of messages.entries()) {
    if (!isObject(message)) return `, message ${at + 1} is not an object.`;
    const { role, content } = message;
    if (role !== 'system' && role !== 'developer' && role !== 'user' && role !== 'assistant' && role !== 'tool') {
      return `, message ${at + 1}, key "role": unknown role.`;
    }
    const calls = role === 'assistant' && Array.isArray(message['tool_calls']);
    if (typeof content !== 'string' && !Array.isArray(content) && !calls) {
      return `, message ${at + 1}, key "content": Input should be a valid string or list of content parts.`;
    }
    hasAssistant ||= role === 'assistant';
  }
  return needsAssistant && !hasAssistant
    ? `, key "${key}": at least one message must be from the assistant.`
    : undefined;
}

function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
