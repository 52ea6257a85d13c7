type Words = readonly [string, ...string[]];

/** The topics of the generated requests. */
export const words = {
  names: ['Amara', 'Björn', 'Chiara', 'Dimitri', 'Elif', 'Farid', 'Greta', 'Hana', 'Ishaan', 'Joana', 'Kofi', 'Lin'],
  cities: ['Accra', 'Bergen', 'Cusco', 'Dakar', 'Esbjerg', 'Fukuoka', 'Gdańsk', 'Hobart', 'Izmir', 'Jaipur', 'Kraków'],
  products: [
    'bicycle lamp',
    'camping stove',
    'desk fan',
    'espresso machine',
    'garden hose',
    'hiking boots',
    'keyboard',
    'music stand',
    'rain jacket',
    'sewing machine',
    'telescope',
    'violin bow',
  ],
  troubles: [
    'makes a grinding noise',
    'does not switch on',
    'arrived without its box',
    'was charged twice',
    'has not been delivered',
    'lost its warranty card',
    'smells of burning',
    'does not fit the description',
  ],
  days: ['Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'last week', 'the update', 'my return from holiday'],
  wishes: [
    'Please send a new one.',
    'I want my money back.',
    'Who can repair it?',
    'This is my third message!',
    'No hurry, I only wanted to tell you.',
    'Can I bring it to a shop?',
  ],
  languages: ['German', 'French', 'Japanese', 'Polish', 'Portuguese', 'Swahili', 'Turkish', 'Ukrainian'],
  goods: ['apples', 'books', 'candles', 'eggs', 'fish', 'flower pots', 'notebooks', 'oranges', 'pencils', 'stamps'],
} as const satisfies Record<string, Words>;
