import { hash } from 'node:crypto';

const lengthMax = 256;

/**
 * What a model is remembered by: its name, or of one longer than any model's its beginning and a digest. Callers choose
 * names, and as many megabytes as a body may have would be kept for each.
 */
export function shortModel(model: string): string {
  return model.length <= lengthMax ? model : `${model.slice(0, 100)}…${hash('sha256', model)}`;
}
