/**
 * Continues with a value: immediately if it is available, otherwise when its promise resolves. Work that seldom waits, such as
 * finding the target of a call, then costs no promise.
 */
export const whenAvailable = <Given, Result>(
  given: Given | Promise<Given>,
  use: (value: Given) => Result | Promise<Result>,
): Result | Promise<Result> => (given instanceof Promise ? given.then(use) : use(given));
