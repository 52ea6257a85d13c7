/** The name of the variable that a value such as `os.environ/NAME` refers to, or null. */
export function parseReference(value: unknown): string | null {
  const [, name = null] = (typeof value === 'string' && /^os\.environ\/([A-Za-z_]\w*)$/.exec(value.trim())) || [];
  return name;
}

/**
 * The variables that a document refers to. Those that it defines itself (`environment_variables`) come first, because
 * LiteLLM sets them when it starts.
 */
export class Variables {
  readonly #defined: ReadonlyMap<string, string>;
  readonly #environment: (name: string) => string | undefined;
  readonly #used = new Set<string>();
  readonly #missing = new Set<string>();
  readonly #literals = new Map<string, string>();

  constructor(defined: ReadonlyMap<string, string>, environment: (name: string) => string | undefined) {
    this.#defined = defined;
    this.#environment = environment;
  }

  /** The value of a variable that is not a secret; undefined if it is not set, which `missing` remembers. */
  read(name: string): string | undefined {
    const value = this.find(name);
    if (value === undefined) this.#missing.add(name);
    return value;
  }

  /** The value of a variable that can be absent. */
  find(name: string): string | undefined {
    this.#used.add(name);
    return this.#defined.get(name) ?? this.#environment(name);
  }

  /** The reference to a secret, as files of records have it. The value is not read. */
  refer(name: string): string {
    this.#used.add(name);
    return `\${env:${name}}`;
  }

  /** The reference to a secret that the document contains, under the name of a new variable. */
  referToLiteral(name: string, secret: string): string {
    this.#literals.set(name, secret);
    return this.refer(name);
  }

  isUsed(name: string): boolean {
    return this.#used.has(name);
  }

  /** The variables that are not set, and without which fields were left out. */
  missing(): string[] {
    return [...this.#missing].toSorted();
  }

  /** The secrets that the document contains, by variable. They are used by an import that applies its records. */
  secrets(): ReadonlyMap<string, string> {
    return new Map([...this.#defined, ...this.#literals]);
  }
}
