import fc from 'fast-check';

/** JSON values as they come back from JSON.stringify, which writes -0 as 0. */
export const jsonValues = (options?: fc.JsonSharedConstraints): fc.Arbitrary<fc.JsonValue> =>
  fc.jsonValue(options).map((value) => JSON.parse(JSON.stringify(value)) as fc.JsonValue);
