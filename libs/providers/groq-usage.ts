import type { Amend } from './dialect.ts';
import { toRecord } from './json-value.ts';

/** Groq's last chunk may tell usage in `x_groq` alone; OpenAI's place for it is beside the choices. */
export function openGroqAmend(): Amend {
  return (answer) => {
    const { usage } = toRecord(answer['x_groq']);
    const told = answer['usage'] !== undefined && answer['usage'] !== null;
    return told || usage === undefined ? answer : { ...answer, usage };
  };
}
