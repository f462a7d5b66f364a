"""The many ways in which people ask: question frames, and small changes that keep a question's meaning."""

from random import Random

TOPIC_FRAMES = (
    "Explain {}.", "Explain {} to me.", "Explain {} in Python.", "Can you explain {}?",
    "Could you explain {} please?", "Please explain {}.", "Explain how {} works.", "Explain what {} does.",
    "What is {}?", "What is {} in Python?", "What is {} for?", "What is {} used for?", "What does {} do?",
    "What does {} mean?", "What does {} mean in Python?", "What are {}?", "What are {} in Python?",
    "What are {} for?", "What are {} used for?", "What do {} do?", "How does {} work?",
    "How does {} work in Python?", "How do {} work?", "How do {} work in Python?", "How do I use {}?",
    "How can I use {} in Python?", "How is {} used?", "How are {} used?", "When do I use {}?",
    "When should {} be used?", "Why use {}?", "Why do people use {}?", "Why does Python have {}?",
    "Why do I need {}?", "Tell me about {}.", "Tell me something about {}.", "Tell me what {} is.",
    "Tell me how {} works.", "Describe {}.", "Describe {} in Python.", "Describe how {} works.", "Define {}.",
    "Give me a definition of {}.", "Summarize {}.", "Give me a short explanation of {}.",
    "Give me an introduction to {}.", "What should I know about {}?", "What can you tell me about {}?",
    "What happens with {}?", "What is the purpose of {}?", "What is the meaning of {}?",
    "What is the point of {}?", "What is the use of {}?", "What's {}?", "What's {} about?",
    "what's up with {}?", "I do not understand {}.", "I don't understand {}, can you help?",
    "I have a question about {}.", "I need help with {}.", "Help me understand {}.",
    "I want to learn about {}.", "I would like to know what {} does.", "I wonder what {} is.",
    "Do you know what {} is?", "Do you know how {} works?", "Show me how {} works.", "Teach me {}.",
    "Teach me about {}.", "{}", "{}?", "{} in Python", "python {}", "{} explained", "{} meaning",
    "{}: what is it?", "About {}...", "The documentation mentions {}. What is that?",
    "I found {} in a function. What does it mean?", "There is {} in this code. What is it doing?",
    "I read about {} in a book, but what is it?", "My script has {}. What does that do?",
    "Somebody told me to use {} in my program. Why?", "In a class, what would {} be?",
    "I saw {} in a module. Can you say what it is?", "We use {} with a list. How does it work?",
    "A friend uses {} in every program. What for?",
    "A variable, a loop and {}: I only miss the last one. What is it?",
    "When Python reaches {}, what does it do?", "If I write {} in my code, what will it do?",
    "Is {} useful? What does it do?", "What exactly does Python do with {}?", "What are the rules of {}?",
    "Which rules apply to {}?", "How would you define {}?", "How would you describe {} to a student?",
    "Say something about {}.", "Who can tell me about {}?", "Are you able to explain {}?",
    "Which purpose does {} serve?", "Inside a function I put {}. What is the effect?",
    "After {}, what does the program do?", "My teacher talked about {} today. What is it?",
    "I am confused about {}.", "I always forget how {} works.",
    "The code declares something with {}. Why is that?", "What do objects have to do with {}?",
    "Where is {} useful?", "What can I do with {}?", "What effect does {} have on my program?",
    "Does {} matter? Explain it.", "Let's talk about {}.",
)  # fmt: skip

NAME_FRAMES = (
    "What does {} do?", "What is {}?", "What is {} for?", "What is {} used for?", "Explain {}.",
    "How does {} work?", "How do I use {}?", "Tell me about {}.", "Describe {}.",
    "What does {} do in Python?", "Can you explain {}?", "What can {} do?", "What is the purpose of {}?",
    "Please explain {}.", "When do I use {}?", "{}", "{}?", "I found {} in a script. What does it do?",
    "I need help with {}.", "Tell me what {} does.", "Do you know {}?", "What should I know about {}?",
    "Document {}.", "Why use {}?", "In this code there is {}. What is that?",
    "My program calls {}. What happens?", "What would I use {} for?", "Give me the documentation of {}.",
    "help({})",
)  # fmt: skip

_OPENERS = (
    "Hi! ", "Hello, ", "Hey, ", "Quick question: ", "I am new to Python. ", "Sorry, a beginner's question: ",
    "Okay, ", "I am learning Python. ", "One more question. ", "Good morning. ", "So, ", "And ", "Now, ",
    "Well, ", "Dear assistant, ", "I am reading some code. ", "I am writing a program. ", "Listen, ",
    "For my homework: ", "I am curious: ",
)  # fmt: skip
_CLOSERS = (
    " Thanks!", " Thank you.", " Please be brief.", " Keep it short.", " I am a beginner.",
    " Just the basics.", " In simple words, please.", " I need it for my homework.", " I am curious.",
    " Please help.", " One or two sentences will do.",
)  # fmt: skip


def ask(random: Random, subject: str, frames: tuple[str, ...]) -> str:
    """One wording of a question about the subject."""
    question = _misspelt(random, random.choice(frames)).format(_marked(random, subject))
    question = question[0].upper() + question[1:] if random.random() < 0.8 else question
    if random.random() < 0.2:
        question = random.choice(_OPENERS) + question[0].lower() + question[1:]
    if random.random() < 0.15:
        question += random.choice(_CLOSERS)
    return _typed(random, question)


def _marked(random: Random, subject: str) -> str:
    """The subject as people set it apart, or do not: backticks, quotes, capitals."""
    chance = random.random()
    if " " not in subject and chance < 0.3:
        return f"`{subject}`" if chance < 0.15 else f'"{subject}"'
    if subject.islower() and 0.3 <= chance < 0.33:
        return subject.upper()
    return subject


def _misspelt(random: Random, frame: str) -> str:
    """Now and then one slip of the fingers: two letters swapped, or one lost, outside the subject's slot."""
    places = [i for i in range(1, len(frame) - 2) if frame[i - 1 : i + 2].isalpha()]
    if random.random() > 0.12 or not places:
        return frame
    place = random.choice(places)
    swapped = frame[place + 1] + frame[place] if random.random() < 0.5 else frame[place]
    return frame[:place] + swapped + frame[place + 2 :]


def _typed(random: Random, question: str) -> str:
    """Careless typing: no capitals, no final punctuation, or too much of it."""
    chance = random.random()
    if chance < 0.15:
        question = question.lower()
    if 0.1 < chance < 0.35:
        question = question.rstrip("?.!")
    elif chance > 0.97:
        question = question.rstrip("?.!") + random.choice(("??", "!", "...", " ?"))
    return question
