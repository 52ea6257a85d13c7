import { inspect } from 'node:util';

/**
 * A secret value that cannot be printed by accident: JSON, template strings and inspection all show `[redacted]`.
 * `reveal()` is the only way to read it and is called only where the value is sent or encrypted.
 */
export class Secret {
  readonly #value: string;

  constructor(value: string) {
    this.#value = value;
  }

  reveal(): string {
    return this.#value;
  }

  /**
   * The last four characters, so that people can distinguish keys. Empty when the value is too short to reveal four.
   */
  lastFour(): string {
    return this.#value.length >= 12 ? this.#value.slice(-4) : '';
  }

  toString(): string {
    return '[redacted]';
  }

  toJSON(): string {
    return '[redacted]';
  }

  [inspect.custom](): string {
    return '[redacted]';
  }
}
