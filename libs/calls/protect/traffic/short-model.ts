import { hash } from 'node:crypto';

const lengthMax = 256;

/**
 * Returns the text under which a model is remembered: its name, or the beginning and a digest of a name that is longer
 * than any real one. Callers choose names, and one could be as large as the maximum body.
 */
export function shortModel(model: string): string {
  return model.length <= lengthMax ? model : `${model.slice(0, 100)}…${hash('sha256', model)}`;
}
